import importlib.util
from pathlib import Path

import pytest

from ppd.core import seeds
from ppd.core.placement import parse_placement
from ppd.core.seeds import sweep
from ppd.core.table import Table

pytestmark = pytest.mark.unit
SCRIPT = Path(__file__).parents[3] / "scripts" / "build_seed_tables.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("build_seed_tables", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("placement", seeds.PLACEMENTS)
def test_a_seed_is_what_the_script_makes_of_the_sweep(script, placement):
    built, left_out = script.build(placement, sweep.points())
    assert built == seeds.load(seeds.name(placement))
    assert str(len(left_out)) in built.source
    assert Table(built).model == seeds.MODEL


def test_points_that_failed_are_left_out_and_named(script):
    built, left_out = script.build("1P3D", sweep.points())
    assert "1P_3D large/huge_paste@4 (p-d): crashed" in left_out
    assert "1P_3D small/huge_paste@20 (p-d): degraded, 25 % succeeded" in left_out
    crashed = next(c for c in built.cells if (c.context, c.ratio, c.qps) == ("large", "huge_paste", 4))
    assert list(crashed.paths) == ["d-local"]
    assert [len(script.build(p, sweep.points())[1]) for p in seeds.PLACEMENTS] == [33, 0, 65]


def test_a_csv_gives_the_points(script, tmp_path):
    path = tmp_path / "sweep.csv"
    columns = ["config", "workload", "qps", "turn2_count", *script.COLUMNS]
    path.write_text(",".join(columns) + "\n1P_3D,small_tiny,0.5,3,90.1239,80,120,8.1,8,9,185.4,100.0\n")
    [point] = script.read_csv(path)
    assert (point.n, point.ttft_ms, point.tpot_p99_ms, point.usable) == (3, 90.124, 9.0, True)
    assert list(sweep.decode(sweep.encode([point]))) == [("1P_3D", "small_tiny", 0.5)]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("1P1D", "2P2D"),
        ("1P3D", "1P3D"),
        ("2P6D", "1P3D"),
        ("1P8D", "1P3D"),
        ("2P1D", "3P1D"),
        ("4P1D", "3P1D"),
        ("1R", "2P2D"),
    ],
)
def test_the_nearest_seed_is_by_proportion_and_says_so(asked, chosen):
    got = seeds.nearest(parse_placement(asked), "small-model", version=7)
    assert (got.model, got.placement, got.version) == ("small-model", asked, 7)
    assert seeds.name(chosen) in got.source
    assert ("nearest" in got.source) == (asked != chosen)
    assert got.cells == seeds.load(seeds.name(chosen)).cells


def test_an_unknown_seed_is_named():
    with pytest.raises(seeds.UnknownSeedError, match="1P3D"):
        seeds.load("../etc/passwd")
