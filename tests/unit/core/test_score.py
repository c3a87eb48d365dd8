import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core import score
from ppd.core.records import TableSnapshot
from ppd.core.score import Expected, Weights

pytestmark = pytest.mark.unit
times = st.floats(0.1, 1e5)
expected = st.builds(Expected, times, times)
weights = st.floats(0, 1e3)


def test_the_score_is_the_papers():
    x0, x1 = Expected(100, 8), Expected(40, 10)
    assert score.score(x0, x1, 1, 1) == pytest.approx(0.6 - 0.25)
    assert score.score(x0, x1, 2, 4) == pytest.approx(1.2 - 1.0)


@given(expected, times, times, times)
def test_risk_grows_with_what_is_expected(one, more_ms, ttft_ms, tpot_ms):
    care = Weights(ttft_limit_ms=ttft_ms, tpot_limit_ms=tpot_ms)
    assert 0 <= score.risk(one, care) <= score.risk(Expected(one.ttft_ms + more_ms, one.tpot_ms), care)
    assert score.risk(one, care) <= score.risk(Expected(one.ttft_ms, one.tpot_ms + more_ms), care)
    assert score.risk(one, Weights()) == 0


def test_a_late_first_token_costs_its_own_turn_and_little_more():
    care = Weights(ttft_limit_ms=100)
    assert score.risk(Expected(20, 1), care) < 0.001
    assert score.risk(Expected(100, 1), care) == pytest.approx(0.5)
    assert 1 < score.risk(Expected(200, 1), care) < score.risk(Expected(400, 1), care) < 1.5


def test_what_a_path_does_to_all_streams_may_cost_several_turns():
    """A paste of thousands of tokens on a full D: its own turn is saved, and more are lost."""
    care = Weights(ttft_limit_ms=300, tpot_limit_ms=16)
    through_p, local = Expected(450, 15.5), Expected(80, 15.5 + 5)
    assert score.risk(through_p, care) < score.risk(local, care)
    short = Expected(80, 15.5 + 0.5)
    assert score.risk(short, care) < score.risk(through_p, care)


@given(expected, expected, weights, weights)
def test_a_path_better_in_both_never_scores_below_zero(x0, x1, w_ttft, w_tpot):
    if x1.ttft_ms <= x0.ttft_ms and x1.tpot_ms <= x0.tpot_ms:
        assert score.score(x0, x1, w_ttft, w_tpot) >= 0
    if x1.ttft_ms >= x0.ttft_ms and x1.tpot_ms >= x0.tpot_ms:
        assert score.score(x0, x1, w_ttft, w_tpot) <= 0


@given(expected, expected, weights, weights, weights)
def test_more_care_for_tpot_never_speaks_for_the_path_that_adds_to_it(x0, x1, w_ttft, w_tpot, more):
    before, after = score.score(x0, x1, w_ttft, w_tpot), score.score(x0, x1, w_ttft, w_tpot + more)
    assert after <= before if x1.tpot_ms > x0.tpot_ms else after >= before


def test_limits():
    assert not score.misses(Expected(1e9, 1e9), Weights())
    assert score.misses(Expected(101, 8), Weights(ttft_limit_ms=100))
    assert not score.misses(Expected(100, 8), Weights(ttft_limit_ms=100, tpot_limit_ms=8))
    assert score.misses(Expected(100, 8.1), Weights(tpot_limit_ms=8))


def test_a_snapshots_weights_and_limits_change_a_class():
    told = TableSnapshot(
        model="m",
        placement="1P1D",
        version=1,
        weights={"batch": (1, 9), "mine": (5, 1)},
        limits={"batch": (500, 0), "late": (0, 40)},
    )
    classes = score.slo_classes(told)
    assert classes["batch"] == Weights(1, 9, ttft_limit_ms=500)
    assert classes["mine"] == Weights(5, 1)
    assert classes["late"] == Weights(tpot_limit_ms=40)
    assert classes["interactive"] == score.SLO_CLASSES["interactive"]
    assert score.slo_classes() == score.SLO_CLASSES
    assert "mine" not in score.SLO_CLASSES
