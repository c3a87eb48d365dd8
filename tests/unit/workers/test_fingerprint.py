import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.connector.fingerprint import MOST_STEPS, marks, matching_prefix, steps

pytestmark = pytest.mark.unit

tokens = st.lists(st.integers(0, 200_000), max_size=60)


def _marks(held: list[int], *counts: int) -> list[list[object]]:
    return [list(mark) for mark in marks(held, counts)]


@given(tokens, tokens, st.integers(0, 60))
def test_what_matches_is_a_common_prefix(held: list[int], prompt: list[int], count: int) -> None:
    same = matching_prefix(prompt, _marks(held, count, len(held)))
    assert prompt[:same] == held[:same]
    assert same <= len(prompt)


@given(tokens, tokens)
def test_a_continued_conversation_matches_whole(held: list[int], new: list[int]) -> None:
    assert matching_prefix(held + new, _marks(held, len(held))) == len(held)


def test_an_answer_that_tokenizes_differently_leaves_the_prompt() -> None:
    held = [1, 2, 3, 4, 5]
    assert matching_prefix([1, 2, 3, 9, 5, 6], _marks(held, 3, 5)) == 3


def test_an_answer_that_tokenizes_differently_at_its_end_leaves_its_beginning() -> None:
    held = list(range(100))
    given_marks = _marks(held, *steps(prompt=10, held=100, block=16))
    assert matching_prefix([*held[:90], 7, 8, 9], given_marks) == 80
    assert matching_prefix([*held, 7, 8, 9], given_marks) == 100
    assert matching_prefix([*held[:12], 7, 8, 9], given_marks) == 10


@given(st.integers(0, 5000), st.integers(0, 50_000), st.sampled_from([1, 16, 128]))
def test_the_number_of_marks_is_bounded(prompt: int, held: int, block: int) -> None:
    where = steps(prompt, held, block)
    assert {prompt, held} <= where
    assert len(where) <= MOST_STEPS + 2
    assert all(count % block == 0 and prompt < count < held for count in where - {prompt, held})


def test_a_shorter_prompt_never_matches_a_longer_mark() -> None:
    assert matching_prefix([1, 2], _marks([1, 2, 3], 3)) == 0


@pytest.mark.parametrize(
    "given_marks", [None, "x", 3, {}, [1], [[1]], [["1", "a"]], [[2, 3]], [[True, "x", 1]], [None]]
)
def test_what_is_no_list_of_marks_matches_nothing(given_marks: object) -> None:
    assert matching_prefix([1, 2, 3], given_marks) == 0
