import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core import place
from ppd.core.decision import WorkerView

pytestmark = pytest.mark.unit


def nothing(worker: str) -> int:
    return 0


def test_no_worker_no_place() -> None:
    assert place.pick_prefill([], 10, nothing) is None
    assert place.pick_decode([]) is None


def test_prefill_goes_where_least_is_outstanding() -> None:
    busy, idle = WorkerView("a", queued_prefill_tokens=500), WorkerView("b", queued_prefill_tokens=10)
    assert place.pick_prefill([busy, idle], 100, nothing) is idle


def test_a_prefix_counts_for_what_it_saves_and_no_more() -> None:
    holds, idle = WorkerView("a", queued_prefill_tokens=500), WorkerView("b")
    assert place.pick_prefill([holds, idle], 2000, {"a": 1900, "b": 0}.__getitem__) is holds
    assert place.pick_prefill([holds, idle], 400, {"a": 380, "b": 0}.__getitem__) is idle


def test_decode_avoids_queues_first() -> None:
    queueing, full = WorkerView("a", waiting=3, kv_use=0.1), WorkerView("b", running=30, kv_use=0.8)
    assert place.pick_decode([queueing, full]) is full


def test_equals_go_to_the_first() -> None:
    one, other = WorkerView("b"), WorkerView("a")
    assert place.pick_decode([one, other]) is one
    assert place.pick_prefill([one, other], 10, nothing) is one


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.floats(0, 1)), min_size=1, max_size=8))
def test_decode_never_takes_one_that_is_worse_in_all(loads: list[tuple[int, int, float]]) -> None:
    views = [WorkerView(str(i), running=r, waiting=w, kv_use=k) for i, (r, w, k) in enumerate(loads)]
    best = place.pick_decode(views)
    assert best is not None
    assert not any(
        other.running < best.running and other.waiting < best.waiting and other.kv_use < best.kv_use
        for other in views
    )


def test_a_session_leaves_a_full_home_only_for_one_with_room() -> None:
    full, roomy, busy = WorkerView("a", kv_use=0.99), WorkerView("b", kv_use=0.2), WorkerView("c", kv_use=0.9)
    assert place.saturated(full, [full, roomy])
    assert not place.saturated(full, [full, busy])
    assert not place.saturated(roomy, [full, busy])
    assert place.saturated(WorkerView("a", waiting=50), [roomy])
