"""When a new version is due, and what the policy makes of what stands in it."""

import msgspec
import pytest

from ppd.core import policies
from ppd.core.decision import Turn, View, WorkerView
from ppd.core.learning.learner import Learner
from ppd.core.learning.publication import MAX_EXPLORE, REFRESH_S, explore_share, improved
from ppd.core.names import Reason, Route
from ppd.core.records import TurnRecord, WorkerLoad
from ppd.core.score import Weights
from ppd.core.table import Table
from tests.unit.core.turn_records import SEED, record

pytestmark = pytest.mark.unit


def taught(*records: TurnRecord) -> Learner:
    learner = Learner(Table(SEED))
    for n, each in enumerate(records):
        learner.observe(each, 1e9 + n)
    return learner


def test_nothing_learned_is_no_reason():
    assert improved(taught(), SEED, 0.01, 1e9) is None


def test_moved_figures_wait_for_their_time_and_a_frozen_table_waits_for_good():
    learner = taught(*[record() for _ in range(20)])
    assert improved(learner, SEED, 0.01, REFRESH_S - 1) is None
    better = improved(learner, SEED, 0.01, REFRESH_S)
    assert better is not None
    assert better.flips == []
    assert better.snapshot.version == SEED.version + 1
    assert improved(learner, better.snapshot, 0.01, 1e9) is None, "once published it is no news"
    assert improved(learner, msgspec.structs.replace(SEED, frozen=True), 0.01, 1e9) is None


def test_drift_widens_exploration_within_its_bound_and_zero_stays_zero():
    learner = taught()
    learner.learned.drifting_until = 10
    better = improved(learner, SEED, 0.01, 0)
    assert better is not None
    assert better.snapshot.explore_share == 0.02
    assert explore_share(0.0, learner.learned) == 0.0
    assert explore_share(0.08, learner.learned) == MAX_EXPLORE
    learner.learned.samples = 10
    back = improved(learner, better.snapshot, 0.01, 0)
    assert back is not None
    assert back.snapshot.explore_share == 0.01


def test_evictions_are_published_and_the_policy_plans_for_them():
    lost = [
        record(expected_cached_tokens=1000, cached_tokens_decode=0, idle_s=400, decode_kv_use=0.9)
        for _ in range(30)
    ]
    better = improved(taught(*lost), SEED, 0.01, 0)
    assert better is not None
    table = Table(better.snapshot)
    turn = Turn(turn=3, n_in=100, n_out=100, n_ctx=1000, qps=1.0, d_cached=1000, idle_s=400)
    policy = policies.make("adaptive")

    def route(turn: Turn, kv_use: float) -> tuple[Route, Reason]:
        view = View(prefill=WorkerView("p"), decode=WorkerView("d", kv_use=kv_use))
        decision = policy.decide(turn, view, table, Weights())
        return decision.path, decision.reason

    assert route(turn, 0.9) == (Route.P_D, Reason.NOT_CACHED)
    assert route(turn, 0.3)[1] is not Reason.NOT_CACHED
    assert route(msgspec.structs.replace(turn, idle_s=5), 0.9)[1] is not Reason.NOT_CACHED


def test_what_a_local_token_costs_others_reaches_the_table():
    learner = taught(*[record() for _ in range(20)])
    learner.observe_load(WorkerLoad(worker_id="d", itl_ms=8, running=4, prefill_speed_tokens_per_s=5000), 1e9)
    better = improved(learner, SEED, 0.01, 1e9)
    assert better is not None
    assert better.snapshot.pause_ms == pytest.approx(0.2)
    assert Table(better.snapshot).interference_ms == pytest.approx(0.2)
    assert Table(SEED).interference_ms != pytest.approx(0.2)


def test_what_a_local_token_costs_is_news_of_its_own_once_it_is_sure():
    learner = taught(record())
    table = msgspec.structs.replace(SEED, explore_share=0.01, pause_ms=-1.0)
    news = []
    for window in range(30):
        load = WorkerLoad(worker_id="d", itl_ms=8, running=4, prefill_speed_tokens_per_s=5000)
        learner.observe_load(load, 1e9 + 2.5 * window)
        news.append(improved(learner, table, 0.01, 0.0) is not None)
    assert not any(news[:20])
    assert all(news[25:])
    assert improved(learner, msgspec.structs.replace(table, pause_ms=0.1), 0.01, 0.0) is None


def test_what_a_local_token_costs_outlasts_a_lull():
    learner = taught(*[record() for _ in range(20)])
    better = improved(learner, msgspec.structs.replace(SEED, pause_ms=0.1), 0.01, 1e9)
    assert better is not None
    assert better.snapshot.pause_ms == 0.1
