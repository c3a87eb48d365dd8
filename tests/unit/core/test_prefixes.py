"""The index of what each engine should hold: bounded like its KV cache, corrected by what it reports."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core.prefixes import Held, Marks, PrefixIndex

pytestmark = pytest.mark.unit

SYSTEM = (1, 2, 3, 4)
ROOM = 1_000_000


def marks(*keys: int) -> Marks:
    """A key each hundred bytes."""
    return Marks(keys, tuple(100 * (i + 1) for i in range(len(keys))))


def test_a_prompt_shares_what_lies_before_its_deepest_known_key() -> None:
    index = PrefixIndex(1000)
    index.add("d0", marks(*SYSTEM, 10, 11), 600, ROOM)
    assert index.held_tokens("d0", marks(*SYSTEM, 10, 11)) == 600
    assert index.held_tokens("d0", marks(*SYSTEM, 20)) == 400
    assert index.held_tokens("d0", marks(90, 91)) == 0
    assert index.held_tokens("d1", marks(*SYSTEM)) == 0


def test_long_chains_are_found_at_their_beginning_too() -> None:
    index, chain = PrefixIndex(10_000), tuple(range(1, 500))
    index.add("d0", marks(*chain[:3]), 300, ROOM)
    assert index.held_tokens("d0", marks(*chain)) == 300
    index.add("d1", marks(*chain), 49_900, ROOM)
    assert index.held_tokens("d1", marks(*chain)) == 49_900
    assert index.holders(marks(*chain))[0] == "d1"


def test_the_deepest_holders_come_first_and_are_few() -> None:
    index = PrefixIndex(1000)
    for i in range(20):
        index.add(f"d{i}", marks(*SYSTEM), 400, ROOM)
    index.add("home", marks(*SYSTEM, 10, 11), 600, ROOM)
    found = Held(index, marks(*SYSTEM, 10, 11, 12)).holders()
    assert found[0] == "home"
    assert len(found) == 4


def test_an_engine_holds_no_more_than_its_cache_and_forgets_what_was_used_least() -> None:
    index = PrefixIndex(1000)
    for chat in range(10):
        index.add("d0", marks(*SYSTEM, 100 + chat), 500, 800)
    assert index.held_tokens("d0", marks(*SYSTEM, 100)) == 400  # the chat is gone, what all share stays
    assert index.held_tokens("d0", marks(*SYSTEM, 109)) == 500
    assert len(index) == 4 + 4


def test_what_an_engine_did_not_have_is_forgotten_and_what_it_had_is_kept() -> None:
    index = PrefixIndex(1000)
    chain = marks(*SYSTEM, 10, 11)
    index.add("d0", chain, 600, ROOM)
    index.correct("d0", chain, 410, 16)
    assert index.held_tokens("d0", chain) == 400
    index.correct("d0", chain, 395, 16)  # less than a block apart
    assert index.held_tokens("d0", chain) == 400


def test_a_restarted_engine_holds_nothing() -> None:
    index = PrefixIndex(1000)
    index.add("d0", marks(*SYSTEM), 400, ROOM)
    index.drop("d0")
    assert (len(index), index.holders(marks(*SYSTEM))) == (0, [])


def test_the_index_takes_up_no_more_than_its_bound() -> None:
    index = PrefixIndex(6)
    index.add("d0", marks(*SYSTEM), 400, ROOM)
    index.add("d0", marks(5, 6, 7, 8), 400, ROOM)
    assert len(index) == 6
    assert index.held_tokens("d0", marks(5, 6, 7, 8)) == 200


chats = st.lists(
    st.tuples(st.sampled_from(["d0", "d1"]), st.lists(st.integers(1, 4), min_size=1, max_size=6)), max_size=40
)


@given(chats, st.integers(100, 900))
def test_counts_agree_and_no_engine_is_over_its_capacity(
    seen: list[tuple[str, list[int]]], room: int
) -> None:
    index = PrefixIndex(1000)
    for worker, path in seen:
        keys, key = [], 0
        for step in path:  # a key names its whole path, as a rolling hash does
            key = hash((key, step))
            keys.append(key)
        chain = marks(*keys)
        index.add(worker, chain, 100 * len(keys), room)
        held = index.held_tokens(worker, chain)
        assert held <= max(room, 0)
        if 100 * len(keys) <= room:
            assert held == 100 * len(keys)  # what was used last is the last to go
    for worker in ("d0", "d1"):
        index.drop(worker)
    assert len(index) == 0
