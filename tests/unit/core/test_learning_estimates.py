"""The parts of the online loop: means that forget, regressions, drift, survival, interference."""

import random
from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppd.core.learning.drift import Drift
from ppd.core.learning.estimate import Decayed
from ppd.core.learning.interference import Interference, charge_ms
from ppd.core.learning.prefill import PrefillCost
from ppd.core.learning.regression import Regression
from ppd.core.learning.survival import IDLE_S, KV_USE, Survival, distrusted, probability
from ppd.core.records import WorkerLoad

pytestmark = pytest.mark.unit

values = st.lists(st.floats(0.1, 1000), min_size=1, max_size=15)


@given(values)
def test_without_age_and_bound_it_is_the_plain_mean_and_spread(observed):
    decayed = Decayed()
    for value in observed:
        decayed.observe(value, 0.0, 60.0, 1e9)
    mean = sum(observed) / len(observed)
    assert decayed.n == pytest.approx(len(observed))
    assert decayed.mean == pytest.approx(mean)
    assert decayed.var == pytest.approx(sum((v - mean) ** 2 for v in observed) / len(observed), abs=1e-6)


@given(values, st.floats(1, 1e6))
def test_the_weight_halves_with_each_half_life(observed, age_s):
    decayed = Decayed()
    for value in observed:
        decayed.observe(value, 100.0, 60.0, 1e9)
    assert decayed.weight(100.0 + age_s, 60.0) == pytest.approx(len(observed) * 0.5 ** (age_s / 60.0))


@settings(deadline=None, max_examples=25)
@given(st.floats(0.5, 50), st.floats(2, 40))
def test_a_lasting_change_gets_through_although_an_outlier_does_not(level, factor):
    decayed = Decayed()
    for n in range(100):
        decayed.observe(level * (1 + 0.01 * (n % 3)), n, 1e9, 50)
    before = decayed.mean
    decayed.observe(level * 1e4, 100, 1e9, 50)
    assert decayed.mean < before * 1.02
    for n in range(400):
        decayed.observe(level * factor, 101 + n, 1e9, 50)
    assert decayed.mean == pytest.approx(level * factor, rel=0.02)


@settings(deadline=None, max_examples=25)
@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 2**32))
def test_a_regression_finds_the_line_that_it_was_shown(intercept, slope, seed):
    draw = random.Random(seed)
    fit = Regression.empty(2)
    for _ in range(200):
        x = draw.uniform(0, 10)
        fit.observe((1.0, x), intercept + slope * x, 0.999)
    found = fit.solve(ridge=1e-6)
    assert found == pytest.approx([intercept, slope], abs=1e-3)


def test_what_never_varied_gets_no_slope():
    fit = Regression.empty(2)
    for n in range(200):
        fit.observe((1.0, 100.0), 1000.0 + n % 2, 0.99)
    intercept, slope = fit.solve()
    assert abs(slope) < 0.01
    assert intercept + 100 * slope == pytest.approx(1000.5, rel=0.01)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.005, 0.2), st.floats(2, 20), st.integers(0, 2**32))
def test_interference_recovers_what_a_local_token_costs(pause_ms, idle_itl_ms, seed):
    """A synthetic D: latency by batch, stretched by the share of time that prefills take."""
    draw = random.Random(seed)
    found = Interference()
    for n in range(400):
        batch, u = draw.uniform(1, 30), draw.uniform(0, 0.8e3 / pause_ms)
        itl_ms = (idle_itl_ms + 0.2 * batch) / (1 - pause_ms * u / 1e3) * draw.gauss(1, 0.01)
        found.observe(
            WorkerLoad(
                worker_id="d",
                itl_ms=itl_ms,
                decode_tokens_per_s=1e3 * batch / itl_ms,
                prefill_tokens_per_s=u,
            ),
            2.0 * n,
        )
    assert found.pause_ms == pytest.approx(pause_ms, rel=0.15)


def test_interference_is_the_prefill_speed_until_it_knows_better_and_never_negative():
    found = Interference()
    assert found.pause_ms == 0
    found.observe(WorkerLoad(worker_id="d", itl_ms=5.0, running=4, prefill_speed_tokens_per_s=10_000), 0.0)
    assert found.pause_ms == pytest.approx(0.1)
    for n in range(100):  # faster the more it prefills: no such engine
        u = 100.0 * (n % 10)
        found.observe(
            WorkerLoad(worker_id="d", itl_ms=10 - u / 200, running=4, prefill_tokens_per_s=u), 2.0 + 2 * n
        )
    assert found.pause_ms == 0


@given(st.floats(0, 1), st.integers(0, 5000), st.floats(0, 100), st.integers(0, 2000))
def test_the_charge_grows_with_all_but_the_answer(pause_ms, computed, others, n_out):
    charge = charge_ms(pause_ms, computed, others, n_out)
    assert 0 <= charge <= pause_ms * computed * others / 32
    assert charge_ms(pause_ms, computed + 1, others, n_out) >= charge
    assert charge_ms(pause_ms, computed, others, n_out + 100) <= charge


def test_a_stale_cache_is_taken_out_of_what_p_d_costs():
    cost = PrefillCost()
    draw = random.Random(3)
    for _ in range(300):
        computed = draw.randrange(100, 3000)
        cost.observe(computed, 80 + 0.05 * computed + draw.gauss(0, 5))
    assert cost.ms_per_token() == pytest.approx(0.05, rel=0.1)
    assert cost.normalized(80 + 0.05 * 2100, 2100, 100) == pytest.approx(85, rel=0.1)


@given(st.lists(st.tuples(st.floats(0, 5000), st.floats(0, 1), st.booleans()), max_size=300))
def test_survival_never_rises_with_idle_time_or_pressure(turns):
    survival = Survival()
    for idle_s, kv_use, kept in turns:
        survival.observe(idle_s, kv_use, kept, 1e9)
    grid = survival.grid()
    assert all(0 <= p <= 1 for row in grid for p in row)
    assert all(a >= b for row in grid for a, b in pairwise(row))
    assert all(a >= b for u, v in pairwise(grid) for a, b in zip(u, v, strict=True))


def test_survival_learns_where_caches_die_and_trusts_where_nothing_is_known():
    survival = Survival()
    assert probability(survival.grid(), 1e9, 1.0) == 1.0
    assert probability([], 5, 0.5) == 1.0
    for _ in range(100):
        survival.observe(5, 0.3, True, 1e9)
        survival.observe(400, 0.9, False, 1e9)
    grid = survival.grid()
    assert probability(grid, 5, 0.3) > 0.95
    assert probability(grid, 400, 0.9) < 0.1
    assert probability(grid, 4000, 0.99) < 0.1
    assert probability(grid, 400, 0.3) > 0.95
    assert distrusted(grid)
    survival.observe(5, 0.3, True, 1e9 + 24 * 3600)
    assert not distrusted(survival.grid()), "a day later it goes and sees again"
    assert len(grid) == len(IDLE_S) + 1
    assert len(grid[0]) == len(KV_USE) + 1


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.floats(0.05, 0.5))
def test_drift_is_silent_on_steady_noise_and_speaks_after_a_shift(seed, sd):
    draw = random.Random(seed)
    drift = Drift()
    steady = sum(drift.observe(draw.lognormvariate(0, sd), 1.0, n) for n in range(1000))
    assert steady == 0
    shift = 1 + 6 * sd
    alarms = [n for n in range(60) if drift.observe(draw.lognormvariate(0, sd) * shift, 1.0, 1000 + n)]
    assert alarms
    assert drift.alarms == len(alarms)
    assert sqrt(drift.residual.var) >= 0


def test_one_outlier_is_no_drift():
    drift = Drift()
    draw = random.Random(1)
    for n in range(100):
        drift.observe(draw.lognormvariate(0, 0.2), 1.0, n)
    assert not drift.observe(1e6, 1.0, 101)
