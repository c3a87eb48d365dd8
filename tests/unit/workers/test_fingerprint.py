import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.connector.fingerprint import mark, matching_prefix

pytestmark = pytest.mark.unit

tokens = st.lists(st.integers(0, 200_000), max_size=60)


def _marks(held: list[int], *counts: int) -> list[list[object]]:
    return [list(mark(held, count)) for count in counts]


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


def test_a_shorter_prompt_never_matches_a_longer_mark() -> None:
    assert matching_prefix([1, 2], _marks([1, 2, 3], 3)) == 0


@pytest.mark.parametrize(
    "marks", [None, "x", 3, {}, [1], [[1]], [["1", "a"]], [[2, 3]], [[True, "x", 1]], [None]]
)
def test_what_is_no_list_of_marks_matches_nothing(marks: object) -> None:
    assert matching_prefix([1, 2, 3], marks) == 0
