"""What a KV transfer costs, from those that were made; how it reaches the table and the policies."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core import policies
from ppd.core.decision import Turn, View, WorkerView
from ppd.core.learning.learner import Learner
from ppd.core.learning.link import UNKNOWN, LinkCost, LinkFit
from ppd.core.learning.publication import improved
from ppd.core.names import Outcome, Route
from ppd.core.score import Weights
from ppd.core.table import Table, TableError
from tests.unit.core.turn_records import SEED, record

pytestmark = pytest.mark.unit


def _moved(draw: random.Random, bytes_per_s: float, setup_s: float, noise: float) -> tuple[int, float]:
    size = draw.randrange(1_000_000, 200_000_000)
    return size, (setup_s + size / bytes_per_s) * draw.uniform(1 - noise, 1 + noise)


@given(st.floats(1e8, 1e11), st.floats(0.001, 0.05), st.integers(0, 2**32), st.sampled_from([0.0, 0.02]))
def test_speed_and_setup_are_found_from_transfers_that_differ(bytes_per_s, setup_s, seed, noise):
    draw, link = random.Random(seed), LinkFit()
    for _ in range(200):
        link.observe(*_moved(draw, bytes_per_s, setup_s, noise))
    cost = link.cost()
    typical_s = cost.setup_ms / 1e3 + 100e6 / cost.bytes_per_s
    assert typical_s == pytest.approx(setup_s + 100e6 / bytes_per_s, rel=0.05)
    if not noise and 200e6 / bytes_per_s > setup_s:
        assert cost.bytes_per_s == pytest.approx(bytes_per_s, rel=0.1)


def test_transfers_of_one_size_count_wholly_for_their_bytes():
    link = LinkFit()
    for _ in range(20):
        link.observe(10_000_000, 0.01)
    cost = link.cost()
    assert cost.bytes_per_s == pytest.approx(1e9, rel=0.01)
    assert cost.setup_ms == pytest.approx(0, abs=0.01)


def test_a_link_that_slows_is_believed_after_some_hundred_transfers():
    draw, link = random.Random(1), LinkFit()
    for _ in range(1000):
        link.observe(*_moved(draw, 15e9, 0.002, 0.02))
    for _ in range(300):
        link.observe(*_moved(draw, 1e9, 0.03, 0.02))
    assert link.cost().bytes_per_s == pytest.approx(1e9, rel=0.15)


@given(st.lists(st.tuples(st.integers(-10, 1 << 50), st.floats()), max_size=30))
def test_no_figure_breaks_it(observed):
    link = LinkFit()
    for size_bytes, seconds in observed:
        link.observe(size_bytes, seconds)
    cost = link.cost()
    assert cost is UNKNOWN or (0 < cost.bytes_per_s <= 1e13 and 0 <= cost.setup_ms <= 1e6)


def _turns(n: int, **fields) -> Learner:
    learner, draw = Learner(Table(SEED)), random.Random(2)
    for i in range(n):
        size, seconds = _moved(draw, 2e9, 0.005, 0.0)
        moved = record(path=Route.P_D, kv_bytes=size, kv_transfer_ms=seconds * 1e3)
        learner.observe(msgspec.structs.replace(moved, **fields), 1e9 + i)
    return learner


def test_what_turns_moved_reaches_the_table_and_outlasts_a_new_prior():
    learner = _turns(50)
    better = improved(learner, SEED, 0.01, 1e9)
    assert better is not None
    assert Table(better.snapshot).link.bytes_per_s == pytest.approx(2e9, rel=0.1)
    again = Learner(Table(msgspec.structs.replace(SEED, version=99)), learner.learned)
    assert again.learned.link.cost() == learner.learned.link.cost()
    still = improved(_turns(1), better.snapshot, 0.01, 1e9)
    assert still is None or still.snapshot.link_bytes_per_s == better.snapshot.link_bytes_per_s


@pytest.mark.parametrize(
    "fields",
    [{"outcome": Outcome.ERROR}, {"path": Route.P_D_PULLBACK}, {"kv_bytes": 0}, {"kv_transfer_ms": 0.0}],
)
def test_turns_that_tell_nothing_of_the_link_are_left_out(fields):
    assert _turns(50, **fields).learned.link.cost() is UNKNOWN


@pytest.mark.parametrize("bad", [{"link_bytes_per_s": -1.0}, {"link_setup_ms": float("inf")}])
def test_a_table_with_an_impossible_link_is_refused(bad):
    with pytest.raises(TableError, match="transfers"):
        Table(msgspec.structs.replace(SEED, **bad))


def test_a_slow_link_speaks_for_d_local():
    turn = Turn(turn=2, n_in=2000, n_out=64, n_ctx=2000, qps=1.0, d_cached=2000, p_cached=2000)
    d = WorkerView("d", age_s=0.1, running=30, queued_prefill_tokens=4000, itl_ms=60.0)

    def path(link: LinkCost) -> Route:
        view = View(
            prefill=WorkerView("p", age_s=0.1, queued_prefill_tokens=100),
            decode=d,
            kv_bytes_per_token=131_072,
            link_bytes_per_s=link.bytes_per_s,
            handoff_ms=link.setup_ms,
        )
        return policies.make("ampd").decide(turn, view, Table(SEED), Weights()).path

    assert path(LinkCost(50e9, 1.0)) is Route.P_D
    assert path(LinkCost(50e6, 1.0)) is Route.D_LOCAL
