import msgspec
import pytest

from ppd.core import report
from ppd.core.report import LocalCells
from ppd.core.seeds import sweep

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def found():
    return report.build()


def test_table_1(found):
    assert found.table1 == {
        "1P_3D": {"0.5-2": -50.6, "4-8": -58.8, "12-20": -70.4},
        "2P_2D": {"0.5-2": -48.6, "4-8": -46.3, "12-20": -52.5},
        "3P_1D": {"0.5-2": -48.7, "4-8": -48.0, "12-20": -52.1},
    }


def test_table_2(found):
    assert found.table2 == {
        "replica": {"ttft": 63.3, "tpot": 6.1, "throughput": 2.2},
        "x=0": {"ttft": 0.0, "tpot": 36.1, "throughput": 15.6},
        "0<x<1": {"ttft": 0.6, "tpot": 37.2, "throughput": 27.8},
        "x=1": {"ttft": 27.2, "tpot": 13.3, "throughput": 38.3},
        "hybrid": {"ttft": 8.9, "tpot": 7.2, "throughput": 16.1},
    }
    for metric in report.METRICS:
        assert sum(won[metric] for won in found.table2.values()) == pytest.approx(100, abs=0.3)


def test_where_the_released_figures_agree_with_the_published_ones(found):
    published = {(family, metric) for family in report.PUBLISHED_TABLE2 for metric in report.METRICS}
    assert published - set(report.differing(found.table2)) == {
        ("replica", "ttft"),
        ("x=0", "ttft"),
        ("x=1", "ttft"),
        ("0<x<1", "throughput"),
        ("x=1", "throughput"),
    }
    text = report.render(found)
    assert "Of Table 2 5 of 12 published shares come out" in text
    assert "throughput: replica, x=0\n" in text


def test_different_winners(found):
    assert found.different_winners == report.PUBLISHED_DIFFERENT_WINNERS == 92.2


def test_nearly_every_cell_is_local_at_even_weights(found):
    assert found.local_at_even_weights["2P2D"] == LocalCells(local=178, measured=180)
    assert found.local_at_even_weights["1P3D"].measured == 180 - 33
    assert found.local_at_even_weights["3P1D"].measured == 180 - 65


def test_every_point_is_in_a_family_and_the_failed_ones_are_counted(found):
    assert {config for config, _, _ in sweep.points()} == {
        c for each in report.FAMILIES.values() for c in each
    }
    assert len(sweep.points()) == 3060
    assert found.crashed == 108
    assert 0 < found.degraded < 100


def test_figures_follow_the_points():
    changed = {
        key: msgspec.structs.replace(point, ttft_ms=point.ttft_ms / 2) if "pD" in key[0] else point
        for key, point in sweep.points().items()
    }
    assert report.build(changed).table1["2P_2D"]["0.5-2"] == pytest.approx(-74.3, abs=0.1)


def test_the_text_shows_both_figures(found):
    text = report.render(found)
    assert "-48.6 (-47.7)" in text
    assert "178 of 180" in text
    assert "92.2 % (92.2)" in text
