import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core.predict import OutputPredictor, RateWindow, session_mean

pytestmark = pytest.mark.unit


def test_a_session_is_predicted_by_its_own_answers_first() -> None:
    outputs = OutputPredictor()
    assert outputs.predict("m", 0, None) == 128
    for _ in range(200):
        outputs.observe("m", 40)
    assert outputs.predict("m", 0, None) == 40
    assert outputs.predict("m", 300, None) == 300


def test_never_above_the_limit_nor_below_one() -> None:
    outputs = OutputPredictor()
    assert outputs.predict("m", 300, 16) == 16
    assert outputs.predict("m", 0.2, None) == 1
    assert outputs.predict("m", 5, 0) == 1


def test_a_session_mean_follows_a_drift() -> None:
    mean = session_mean(0, 100)
    assert mean == 100
    for _ in range(20):
        mean = session_mean(mean, 10)
    assert mean == pytest.approx(10, abs=1)


def test_models_are_bounded() -> None:
    outputs = OutputPredictor()
    for i in range(5000):
        outputs.observe(f"m{i}", 10)
    assert len(outputs._means) <= 256


def test_a_steady_rate_is_seen_and_forgotten() -> None:
    window = RateWindow(10)
    for i in range(200):
        window.add(i / 4)
    assert window.rate(50) == pytest.approx(4, rel=0.15)
    assert window.rate(100) == 0


@given(st.lists(st.floats(0, 100), max_size=60))
def test_the_window_counts_what_lies_within_it(times: list[float]) -> None:
    window = RateWindow(10)
    for time_s in sorted(times):
        window.add(time_s)
    last = max(times, default=0.0)
    inside = sum(int(time_s) > int(last) - 10 for time_s in times)
    assert window._total == inside
