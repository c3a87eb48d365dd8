"""Which rates a cluster is measured at, and how long that takes."""

import random
from statistics import fmean

import pytest

from planner.profile import capacity
from planner.profile.capacity import MeasuredShape
from planner.profile.client import MeasuredCluster
from planner.profile.load import growth, judge
from planner.profile.preflight import check, fits
from planner.profile.records import Flag, ProfileError, Speeds, TurnSample
from ppd.core.cells import QPS_LEVELS, Context, Ratio
from tests.unit.planner.profiles import cell, samples

pytestmark = pytest.mark.unit

SPEEDS = Speeds(prefill_tokens_per_s=1000.0, decode_tokens_per_s=200.0, step_ms=40.0, streams=8)
TINY = MeasuredShape(Context.SMALL, Ratio.TINY)


def test_a_fast_cluster_is_measured_at_every_level_itself():
    assert capacity.rates(50.0) == {level: level for level in QPS_LEVELS}


def test_levels_beyond_the_capacity_are_left_out():
    assert set(capacity.rates(2.5)) == {0.5, 1.0, 2.0}


def test_a_slow_cluster_is_measured_below_the_lowest_level():
    assert capacity.rates(0.1) == {0.5: pytest.approx(0.07)}


def test_capacity_is_that_of_the_narrower_pool():
    decode_bound = capacity.conversations_per_s(SPEEDS, TINY, 2)
    assert decode_bound == pytest.approx(200 / (128 + 32))
    paste = MeasuredShape(Context.SMALL, Ratio.HUGE_PASTE)
    assert capacity.conversations_per_s(SPEEDS, paste, 2) == pytest.approx(1000 / (128 + 128 + 1024))


def test_more_turns_are_more_work():
    assert capacity.conversations_per_s(SPEEDS, TINY, 4) < capacity.conversations_per_s(SPEEDS, TINY, 2)


def test_a_point_has_enough_conversations_and_a_lead_that_fills_the_cluster():
    plan = capacity.plan(cell("small/tiny@1"), 1.0, SPEEDS, 2, 6, 10.0, {})
    assert plan.counted == 10
    assert plan.lead == 7  # 160 tokens at 40 ms each, and the prefills
    assert plan.seconds > (plan.lead + plan.counted) / plan.rate
    slow = capacity.plan(cell("small/tiny@0.5"), 0.1, SPEEDS, 2, 6, 10.0, {})
    assert slow.counted == 6
    known = capacity.plan(cell("small/tiny@1"), 1.0, SPEEDS, 2, 6, 10.0, {TINY: 1.0})
    assert known.lead == 1


def test_arrivals_are_poisson_at_the_rate():
    plan = capacity.plan(cell("small/tiny@4"), 4.0, SPEEDS, 2, 3000, 10.0, {})
    gaps_s = plan.gaps_s(random.Random(1))
    assert len(gaps_s) == plan.lead + plan.counted
    assert fmean(gaps_s) == pytest.approx(0.25, rel=0.1)
    assert fmean(g * g for g in gaps_s) == pytest.approx(2 * 0.25**2, rel=0.2)


def test_points_are_shorter_where_time_is_short():
    assert capacity.window_s(None) == capacity.window_s(7200.0) == 10.0
    assert 2 < capacity.window_s(60.0) <= capacity.window_s(600.0) < 10


def test_conversations_that_take_longer_and_longer_are_saturation():
    assert growth([1.0] * 10) == 1.0
    assert growth([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(2.5)
    assert growth([1.0, 9.0]) == 1.0  # too few to tell
    assert judge(tuple(samples(10, 1.0)), 2.5) is Flag.SATURATED
    assert judge(tuple(samples(10, 1.0)), 1.2) is None


def test_more_than_a_tenth_of_failed_turns_fail_a_point():
    bad = TurnSample(turn=2, error="500")
    assert judge((*samples(9, 1.0), bad), 1.0) is None
    assert judge((*samples(8, 1.0), bad, bad), 1.0) is Flag.FAILED
    assert judge((bad,), 1.0) is Flag.FAILED


def test_conversations_stay_within_the_models_context():
    assert fits(cell("large/mid_bal@1"), 2, 4096)
    assert not fits(cell("huge/tiny@1"), 2, 4096)
    assert not fits(cell("large/huge_paste@1"), 4, 4096)
    assert fits(cell("huge/tiny@1"), 2, 0)  # not told


@pytest.mark.parametrize("placement", ["4R", "1R"])
def test_a_placement_with_nothing_to_decide_is_refused(placement: str):
    with pytest.raises(ProfileError, match="no path to choose"):
        check(MeasuredCluster("m", placement, 4096, 1))
