"""The online loop as a whole: a cluster whose true costs are known, seeded with the wrong table."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppd.core import cells, seeds
from ppd.core.cells import Cell
from ppd.core.learning.diff import diff
from ppd.core.learning.learner import DRIFT_TURNS, Learned, Learner
from ppd.core.learning.proposal import Proposal, propose
from ppd.core.learning.ratios import Belief
from ppd.core.learning.samples import Unfit, sample_of
from ppd.core.learning.verdicts import Cost, rescaled, settled
from ppd.core.names import Outcome, Reason, Route
from ppd.core.placement import parse_placement
from ppd.core.records import WorkerLoad
from ppd.core.score import SLO_CLASSES, Expected, Weights, score
from ppd.core.table import Table
from tests.unit.core.turn_records import turn_of

pytestmark = pytest.mark.unit

PRIOR = Table(seeds.nearest(parse_placement("2P2D"), "m"))
VISITED = [cells.make_cell("large", "mid_bal", q) for q in (1, 2, 4)] + [
    cells.make_cell("small", "big_paste", 1)
]
# D-local is 25 times dearer than on the seed's hardware, P->D seven times: the verdicts turn over.
SLOW_D = {Route.D_LOCAL: (25.0, 5.0), Route.P_D: (7.0, 3.5)}
# All ten times dearer: every verdict stays.
SLOW_ALL = {Route.D_LOCAL: (10.0, 10.0), Route.P_D: (10.0, 10.0)}


class FakeCluster:
    """Turns by the published verdict and bounded exploration, with the true costs and some noise."""

    def __init__(self, truth, seed=1, prior=PRIOR):
        self.truth, self.draw, self.published = truth, random.Random(seed), prior
        self.learner = Learner(prior)
        self.flips: list[str] = []
        self.now_s = 1e9

    def true_cost(self, cell: Cell, path: Route) -> Expected:
        expected, (ttft, tpot) = PRIOR.lookup(cell.slot).expected[path], self.truth[path]
        return Expected(expected.ttft_ms * ttft, expected.tpot_ms * tpot)

    def turn(self, explore: float = 0.01) -> None:
        cell = self.draw.choice(VISITED)
        path, explored = self.published.verdicts(1, 1)[cell.slot].path, self.draw.random() < explore
        if explored:
            path = Route.P_D if path is Route.D_LOCAL else Route.D_LOCAL
        cost = self.true_cost(cell, path)
        self.now_s += 0.2
        self.learner.observe(
            turn_of(
                path=path,
                explored=explored,
                cell=str(cell),
                ttft_ms=cost.ttft_ms * self.draw.lognormvariate(-0.045, 0.3),
                tpot_ms=cost.tpot_ms * self.draw.lognormvariate(-0.02, 0.2),
            ),
            self.now_s,
        )

    def run(self, turns: int, explore: float = 0.01) -> "FakeCluster":
        for n in range(turns):
            self.turn(explore)
            if n % 50 == 49:
                self.publish(propose(self.learner, self.published, SLO_CLASSES))
        return self

    def publish(self, proposal: Proposal) -> None:
        if proposal.flips:
            self.flips += proposal.flips
            self.published = Table(
                msgspec.structs.replace(
                    self.published.snapshot, cells=proposal.cells, version=self.published.version + 1
                )
            )

    def verdict(self, cell: Cell, slo: str) -> Route:
        weights = SLO_CLASSES[slo]
        return self.published.verdicts(weights.ttft, weights.tpot)[cell.slot].path

    def true_verdict(self, cell: Cell, slo: str) -> Route:
        weights = SLO_CLASSES[slo]
        s = score(
            self.true_cost(cell, Route.P_D), self.true_cost(cell, Route.D_LOCAL), weights.ttft, weights.tpot
        )
        return Route.D_LOCAL if s > 0 else Route.P_D

    def all_right(self) -> bool:
        return all(self.verdict(c, slo) is self.true_verdict(c, slo) for c in VISITED for slo in SLO_CLASSES)


@pytest.mark.parametrize("seed", range(4))
def test_wrong_verdicts_are_found_and_changed_once(seed):
    cluster = FakeCluster(SLOW_D, seed)
    assert not cluster.all_right()
    cluster.run(4000)
    assert cluster.all_right()
    assert len(cluster.flips) == len(set(cluster.flips)), "no verdict flapped"


@pytest.mark.parametrize("seed", range(4))
def test_another_scale_alone_changes_no_verdict(seed):
    cluster = FakeCluster(SLOW_ALL, seed).run(3000)
    assert cluster.flips == []
    figures = propose(cluster.learner, cluster.published, SLO_CLASSES)
    assert figures.shift > 1
    published = Table(msgspec.structs.replace(PRIOR.snapshot, cells=figures.cells))
    for cell in VISITED:
        assert published.lookup(cell.slot).d_local.ttft_ms == pytest.approx(
            cluster.true_cost(cell, Route.D_LOCAL).ttft_ms, rel=0.15
        )


def test_cells_without_turns_follow_the_scale_and_keep_their_verdict():
    cluster = FakeCluster(SLOW_D).run(4000)
    after = Table(
        msgspec.structs.replace(
            PRIOR.snapshot, cells=propose(cluster.learner, cluster.published, SLO_CLASSES).cells
        )
    )
    unvisited = [c for c in cells.CELLS if PRIOR.lookup(c.slot).exact and c not in VISITED]
    assert len(unvisited) > 100
    for cell in unvisited:
        assert after.lookup(cell.slot).d_local.ttft_ms > 5 * PRIOR.lookup(cell.slot).d_local.ttft_ms
        for weights in SLO_CLASSES.values():
            was, now = (t.verdicts(weights.ttft, weights.tpot)[cell.slot].path for t in (PRIOR, after))
            assert was is now


def test_without_exploration_the_path_not_taken_is_not_condemned_unseen():
    cluster = FakeCluster({Route.D_LOCAL: (10.0, 10.0), Route.P_D: (0.01, 0.01)}).run(1000, explore=0)
    assert cluster.flips == []


def test_a_shift_in_the_middle_is_drift_and_the_verdicts_follow_within_two_thousand_turns():
    cluster = FakeCluster({Route.D_LOCAL: (1.0, 1.0), Route.P_D: (1.0, 1.0)}).run(2000)
    assert cluster.all_right()
    assert not cluster.learner.learned.drifting
    cluster.truth = SLOW_D
    cluster.run(100)
    assert cluster.learner.learned.drifting
    cluster.run(1900, explore=0.02)
    assert cluster.all_right()
    cluster.run(DRIFT_TURNS + 2000)
    assert not cluster.learner.learned.drifting


def test_what_is_saved_goes_on_as_if_nothing_had_happened():
    one, two = FakeCluster(SLOW_D), FakeCluster(SLOW_D)
    for n in range(600):
        one.turn()
        two.turn()
        if n % 100 == 50:
            saved = msgspec.json.encode(two.learner.learned)
            two.learner = Learner(PRIOR, msgspec.json.decode(saved, type=Learned))
    assert msgspec.json.encode(one.learner.learned) == msgspec.json.encode(two.learner.learned)


def test_another_prior_drops_the_ratios_and_keeps_what_holds_for_any():
    cluster = FakeCluster(SLOW_D).run(300)
    cluster.learner.observe(turn_of(cached_tokens_decode=0, expected_cached_tokens=900), 1e9)
    other = Table(msgspec.structs.replace(PRIOR.snapshot, version=9))
    learner = Learner(other, cluster.learner.learned)
    assert learner.learned.ratios.cells == {}
    assert learner.learned.prior_version == 9
    assert learner.learned.survival.grid() != Learned().survival.grid()


def test_paths_that_are_chosen_at_unlike_moments_are_compared_at_one_batch():
    """TPOT is 8 ms and 1 ms a stream, whatever the path: D-local turns met two streams, P->D turns ten."""
    learner = Learner(PRIOR)
    for n in range(200):
        batch = 2 + n % 9
        load = WorkerLoad(
            worker_id="d0",
            itl_ms=8.0 + batch,
            running=batch,
            decode_tokens_per_s=1e3 * batch / (8 + batch),
            prefill_speed_tokens_per_s=5_000,
        )
        learner.observe_load(load, 10.0 * n)
    for n in range(100):
        local = n % 2 == 0
        batch = 2 if local else 10
        learner.observe(
            turn_of(
                path=Route.D_LOCAL if local else Route.P_D,
                decode_worker="d0",
                decode_running=batch,
                tpot_ms=8.0 + batch,
                cached_tokens_decode=1100 if local else -1,
            ),
            1e9 + n,
        )
    cell = str(cells.cell_of(1000, 100, 100, 1.0))
    now_s = learner.learned.at_s
    tpot = {
        path: learner.learned.ratios.tpot(cell, path, now_s).ratio
        * learner.prior_cost(cells.parse_cell(cell), path).tpot_ms
        for path in (Route.P_D, Route.D_LOCAL)
    }
    assert tpot[Route.D_LOCAL] == pytest.approx(tpot[Route.P_D], rel=0.05)
    assert tpot[Route.P_D] == pytest.approx(14, rel=0.05)


def test_the_charge_is_spread_over_first_turns_too():
    """They are held up like the others, and have no local prefill of their own."""
    load = WorkerLoad(worker_id="d0", itl_ms=8.0, running=9, prefill_speed_tokens_per_s=5_000)
    tpot = {}
    for first_turns in (0, 1):
        learner = Learner(PRIOR)
        learner.observe_load(load, 0.0)
        for n in range(400):
            if first_turns:
                learner.observe(turn_of(turn=1, n_out_tokens=300), n)
            learner.observe(turn_of(decode_worker="d0", decode_running=8), n)
        cell = str(cells.cell_of(1000, 100, 100, 1.0))
        tpot[first_turns] = learner.learned.ratios.tpot(cell, Route.D_LOCAL, 400.0).ratio
    cost = PRIOR.lookup(cells.cell_of(1000, 100, 100, 1.0).slot).d_local.tpot_ms
    charged = {key: ratio * cost - 10.0 for key, ratio in tpot.items()}
    assert charged[0] == pytest.approx(4 * charged[1], rel=0.15)


def test_a_class_without_evidence_keeps_its_verdict_where_another_one_changes():
    before = {Route.P_D: Expected(140.0, 8.0), Route.D_LOCAL: Expected(70.0, 8.0)}
    sure, unsure = Belief(1, 0.02, 0.1, 50), Belief(1, 0.3, 0.1, 50)
    now = {
        Route.P_D: Cost(Expected(4500.0, 150.0), unsure, sure),
        Route.D_LOCAL: Cost(Expected(2800.0, 278.0), unsure, sure),
    }
    classes = {"interactive": Weights(2.0, 1.0), "steady": Weights(1.0, 10.0)}
    figures, changed = settled(before, now, classes)
    assert changed == ["steady"]
    scores = {
        name: score(figures[Route.P_D], figures[Route.D_LOCAL], w.ttft, w.tpot) for name, w in classes.items()
    }
    assert scores["interactive"] > 0
    assert scores["steady"] < 0
    assert figures[Route.P_D].ttft_ms > 2000, "the scale is taken over all the same"


def test_the_charge_for_other_streams_makes_d_local_dearer():
    alone, crowded = Learner(PRIOR), Learner(PRIOR)
    for learner in (alone, crowded):
        for n in range(50):
            load = WorkerLoad(worker_id="d0", itl_ms=8.0, running=9, prefill_speed_tokens_per_s=5_000)
            learner.observe_load(load, 2.0 * n)
    for n in range(50):
        alone.observe(turn_of(decode_worker="d0", decode_running=0), n)
        crowded.observe(turn_of(decode_worker="d0", decode_running=8), n)
    cell = str(sample_of(turn_of()).cell)
    dear, cheap = (each.learned.ratios.tpot(cell, Route.D_LOCAL, 50).ratio for each in (crowded, alone))
    assert dear > 1.1 * cheap


def test_turns_with_a_stale_p_cache_do_not_make_p_d_look_dearer_than_it_is():
    learner, draw = Learner(PRIOR), random.Random(5)
    cell = sample_of(turn_of()).cell
    usual = PRIOR.lookup(cell.slot).baseline.p_tokens
    for n in range(600):
        lacks = usual + draw.choice((0, 1000, 3000))
        ttft_ms = 100 + 0.05 * lacks + draw.gauss(0, 3)
        learner.observe(
            turn_of(path=Route.P_D, ttft_ms=ttft_ms, n_in_tokens=100, p_missing_tokens=lacks - 100), n
        )
    learned = (
        learner.prior_cost(cell, Route.P_D).ttft_ms
        * learner.learned.ratios.ttft(str(cell), Route.P_D, 600).ratio
    )
    assert learned == pytest.approx(100 + 0.05 * usual, rel=0.1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"turn": 1}, Unfit.FIRST),
        ({"outcome": Outcome.ERROR}, Unfit.FAILED),
        ({"status": 503}, Unfit.FAILED),
        ({"reason": Reason.PREFILL_FAILED}, Unfit.DETOUR),
        ({"path": Route.REPLICA}, Unfit.DETOUR),
        ({"retries": 1}, Unfit.DETOUR),
        ({"migrations": 1}, Unfit.DETOUR),
        ({"ttft_ms": 0.0}, Unfit.NO_TIMES),
        ({"tpot_ms": -1.0}, Unfit.NO_TIMES),
        ({"ttft_ms": 1e300}, Unfit.IMPLAUSIBLE),
        ({"n_in_tokens": -5}, Unfit.IMPLAUSIBLE),
        ({"p_missing_tokens": 10**15}, Unfit.IMPLAUSIBLE),
        ({"expected_cached_tokens": 900, "cached_tokens_decode": 128}, Unfit.EVICTED),
    ],
)
def test_turns_that_teach_nothing_change_nothing(fields, why):
    learner = Learner(PRIOR)
    assert learner.observe(turn_of(**fields), 1.0) is why
    assert learner.learned.ratios.cells == {}
    assert learner.learned.unfit == {why: 1}


numbers = st.one_of(st.integers(-(2**40), 2**40), st.just(0))
floats = st.floats(-1e300, 1e300)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "path": st.sampled_from(Route),
                "n_in_tokens": numbers,
                "n_out_tokens": numbers,
                "n_ctx_tokens": numbers,
                "n_prompt_tokens": numbers,
                "cached_tokens_prefill": numbers,
                "cached_tokens_decode": numbers,
                "expected_cached_tokens": numbers,
                "decode_running": numbers,
                "ttft_ms": floats,
                "tpot_ms": floats,
                "qps": floats,
                "idle_s": floats,
                "decode_kv_use": floats,
                "cell": st.sampled_from(["", "large/mid_bal@4", "x/y@z", "large/mid_bal@nan"]),
            }
        ),
        max_size=12,
    )
)
def test_no_record_breaks_the_learner_or_the_table_that_it_proposes(records):
    learner = Learner(PRIOR)
    for n, fields in enumerate(records):
        learner.observe(turn_of(**fields), float(n))
    proposal = propose(learner, PRIOR, SLO_CLASSES)
    Table(msgspec.structs.replace(PRIOR.snapshot, cells=proposal.cells))
    assert proposal.flips == []


costs = st.builds(Expected, st.floats(1, 1e4), st.floats(0.1, 1e3))
BELIEF = Belief(1.0, 0.1, 0.1, 10.0)


@given(costs, costs, costs, costs)
def test_a_new_scale_leaves_every_score_as_it_was(p_d, d_local, new_p_d, new_d_local):
    before = {Route.P_D: p_d, Route.D_LOCAL: d_local}
    now = {Route.P_D: Cost(new_p_d, BELIEF, BELIEF), Route.D_LOCAL: Cost(new_d_local, BELIEF, BELIEF)}
    after = rescaled(before, now)
    for weights in SLO_CLASSES.values():
        assert score(after[Route.P_D], after[Route.D_LOCAL], weights.ttft, weights.tpot) == pytest.approx(
            score(p_d, d_local, weights.ttft, weights.tpot), rel=1e-6, abs=1e-6
        )


def test_diff_names_what_changed_and_nothing_else():
    same = diff(PRIOR, Table(msgspec.structs.replace(PRIOR.snapshot, version=2)))
    assert (same["verdicts"], same["figures"]) == ([], [])
    cluster = FakeCluster(SLOW_D).run(4000)
    found = diff(PRIOR, cluster.published)
    assert {each["cell"] for each in found["verdicts"]} >= {str(cell) for cell in VISITED}
    assert found["figures"]
    msgspec.json.encode(found)
