"""A preference for engines that served the same beginning, and its bounds."""

import pytest

from ppd.core import place
from ppd.core.affinity import MAX_IN_A_ROW, NOWHERE, QUIET_S, Affinity, Near
from ppd.core.decision import WorkerView

pytestmark = pytest.mark.unit

HERE = Near("d0", "p0")


def _nothing(_: str) -> int:
    return 0


def test_a_key_prefers_the_engines_that_it_had() -> None:
    known = Affinity()
    assert known.near("k", 0.0) == NOWHERE
    known.placed("k", HERE, True, 0.0)
    assert known.near("k", 1.0) == HERE
    assert known.near("other", 1.0) == NOWHERE
    known.placed("k", Near("d1"), True, 2.0)  # without P: what P holds stays where it was
    assert known.near("k", 3.0) == Near("d1", "p0")


def test_a_few_conversations_in_a_row_and_no_more() -> None:
    known = Affinity()
    for n in range(MAX_IN_A_ROW):
        assert known.near("k", float(n)) == (HERE if n else NOWHERE)
        known.placed("k", HERE, True, float(n))
    assert known.near("k", float(MAX_IN_A_ROW)) == NOWHERE
    known.placed("k", Near("d1", "p0"), True, 9.0)
    assert known.near("k", 10.0).worker == "d1"


def test_a_pause_begins_the_count_anew_and_one_conversation_is_counted_once() -> None:
    known = Affinity()
    for n in range(10 * MAX_IN_A_ROW):
        known.placed("k", HERE, False, float(n))
    assert known.near("k", 100.0) == HERE
    for n in range(3 * MAX_IN_A_ROW):
        known.placed("k", HERE, True, 200 + n * 2 * QUIET_S)
        assert known.near("k", 200 + n * 2 * QUIET_S + 1) == HERE


def test_it_is_bounded() -> None:
    known = Affinity(max_keys=3)
    for n in range(9):
        known.placed(str(n), HERE, True, 0.0)
    assert len(known) == 3
    assert known.near("8", 0.0) == HERE
    assert known.near("0", 0.0) == NOWHERE


@pytest.mark.parametrize(
    ("preferred", "taken"),
    [
        ({"running": 5}, True),
        ({"running": 6}, False),
        ({"running": 3, "waiting": 1}, False),
        ({"running": 3, "kv_use": 0.55}, True),
        ({"running": 3, "kv_use": 0.7}, False),
    ],
)
def test_the_preferred_decode_is_taken_only_near_the_least_load(
    preferred: dict[str, float], taken: bool
) -> None:
    least = WorkerView("d0", running=3, kv_use=0.5)
    other = WorkerView("d1", **({"kv_use": 0.5} | preferred))  # type: ignore[arg-type]
    found = place.pick_decode([least, other], preferred="d1")
    assert found is (other if taken else least)
    assert place.pick_decode([least, other], preferred="gone") is place.pick_decode([least, other])


def test_the_preferred_prefill_may_be_later_by_half_a_prompt() -> None:
    free, busy = WorkerView("p0"), WorkerView("p1", queued_prefill_tokens=500)
    assert place.pick_prefill([free, busy], 1000, _nothing, "p1") is busy
    assert place.pick_prefill([free, busy], 999, _nothing, "p1") is free
    assert place.pick_prefill([free, busy], 1000, _nothing) is free
