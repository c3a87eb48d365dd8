"""What cached tokens say: whether D kept the conversation, and how much of its answer the next prompt has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core.learning.samples import Unfit, sample_of, survived
from ppd.core.names import Outcome
from ppd.core.retention import UNKNOWN, AnswerKind, Judged, Retention, judge
from tests.unit.core.turn_records import turn_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("cached", "found"),
    [
        (1328, Judged(True, 1.0)),  # all but the last token
        (992, Judged(True, 0.0)),  # the question, and nothing of the answer
        (976, Judged(True, 0.0)),  # a template cut some tokens more
        (1152, Judged(True, pytest.approx(160 / 336))),
        (600, Judged(True, None)),  # the question's end is gone too: of the answer nothing can be said
        (400, Judged(False)),
        (0, Judged(False)),
        (-1, UNKNOWN),
    ],
)
def test_of_a_question_of_1000_tokens_and_an_answer_of_340(cached: int, found: Judged) -> None:
    assert judge(cached, 1000, 340, (), 16) == found


def test_what_fits_into_no_block_tells_nothing() -> None:
    assert judge(0, 37, 40, (), 128) == UNKNOWN
    assert judge(0, 37, 400, (), 128) == UNKNOWN  # evicted, or the template dropped the answer
    assert judge(384, 37, 400, (), 128) == Judged(True, 1.0)


def test_a_cut_at_an_earlier_end_of_the_history_is_no_eviction() -> None:
    """A template that drops the reasoning of all turns since a user's message, when the next one comes."""
    assert judge(208, 1000, 340, (210, 240, 700), 16) == UNKNOWN
    assert judge(400, 1000, 340, (210, 240, 700), 16) == Judged(False)
    assert judge(0, 1000, 340, (8, 20), 16) == Judged(False)


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 256), st.floats(0, 1))
def test_what_d_should_hold_is_kept(question: int, answer: int, block: int, found: float) -> None:
    held = question + round(found * answer)
    judged = judge(min(held, question + max(answer - 1, 0)) // block * block, question, answer, (), block)
    assert judged.kept is not False
    assert judged.share is None or 0 <= judged.share <= 1
    if judged.share is not None and answer:
        assert abs(judged.share - found) * answer <= 3 * block + 2


@given(st.integers(200, 5000), st.integers(0, 5000), st.integers(1, 64))
def test_what_was_evicted_is_not(question: int, answer: int, block: int) -> None:
    assert judge(0, question, answer, (), block) == Judged(False)


def test_the_share_is_learned_per_model_and_kind() -> None:
    known = Retention()
    assert [known.share("m", kind) for kind in AnswerKind] == [1.0, 0.0, 1.0]
    for _ in range(60):
        known.observe("m", AnswerKind.TOOLS, 0.2)
        known.observe("keeps", AnswerKind.REASONING, 1.0)
    assert known.share("m", AnswerKind.TOOLS) == pytest.approx(0.2, abs=0.1)
    assert known.share("m", AnswerKind.PLAIN) == 1.0
    assert known.share("keeps", AnswerKind.REASONING) == 1.0
    assert known.share("m", AnswerKind.REASONING) == 0.0


def test_the_planner_goes_by_the_frontends_judgement() -> None:
    local = {"expected_cached_tokens": 1340, "cached_tokens_decode": 600, "n_prompt_tokens": 1500}
    assert survived(turn_of(**local)) is False  # an older frontend
    assert sample_of(turn_of(**local)) is Unfit.EVICTED
    for kept in (True, None):
        assert survived(turn_of(**local, kept=kept)) is kept
        assert not isinstance(sample_of(turn_of(**local, kept=kept)), Unfit)
    assert sample_of(turn_of(**local, kept=False)) is Unfit.EVICTED
    assert survived(turn_of(**local, kept=True, outcome=Outcome.CANCELLED, status=499)) is None
