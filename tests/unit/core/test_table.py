import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core import cells
from ppd.core.cells import CELLS, Cell, Context, Ratio
from ppd.core.names import Route
from ppd.core.records import CellRecord, Estimate, PathEstimate
from ppd.core.table import Table, TableError
from tests.unit.core.tables import figures, record, snapshot, table

pytestmark = pytest.mark.unit
HERE = Cell(Context.LARGE, Ratio.MID_BAL, 4.0)
FAR = Cell(Context.SMALL, Ratio.HUGE_PASTE, 20.0)


def test_a_measured_cell_answers_for_itself():
    row = table(record(HERE, p_d=(100, 8), d_local=(40, 9))).lookup(HERE.slot)
    assert (row.source, row.exact) == (HERE, True)
    assert row.expected[Route.P_D].ttft_ms == 100
    assert row.d_local.tpot_ms == 9
    assert row.pullback is None


@given(st.sets(st.sampled_from(CELLS), min_size=1, max_size=12))
def test_every_other_cell_points_at_the_nearest_measured_one(measured):
    t = table(*(record(cell, p_d=(100, 8), d_local=(40, 9)) for cell in measured))
    for cell in CELLS:
        row = t.lookup(cell.slot)
        assert row.exact == (cell in measured)
        assert cells.distance(cell, row.source) == min(cells.distance(cell, other) for other in measured)


def test_a_cell_with_one_path_is_not_scored():
    t = table(record(HERE, d_local=(40, 9)), record(FAR, p_d=(100, 8), d_local=(200, 9)))
    assert t.lookup(HERE.slot).source == FAR
    assert t.verdicts(1, 1)[HERE.slot].path is Route.P_D


def test_verdicts_follow_the_weights():
    t = table(record(HERE, p_d=(100, 8), d_local=(40, 10)))  # saves 60 %, adds 25 %
    assert t.verdicts(1, 1)[HERE.slot].score == pytest.approx(0.35)
    assert t.verdicts(1, 1)[HERE.slot].path is Route.D_LOCAL
    assert t.verdicts(1, 3)[HERE.slot].path is Route.P_D
    assert t.verdicts(1, 1) is t.verdicts(1, 1)


def test_the_verdicts_kept_are_bounded():
    t = table(record(HERE, p_d=(100, 8), d_local=(40, 10)))
    for w in range(200):
        t.verdicts(1, w)
    assert len(t._verdicts) <= 64


def test_a_tie_goes_to_the_nearest_decided_cell():
    tied = Cell(Context.LARGE, Ratio.MID_BAL, 6.0)
    t = table(record(tied, p_d=(100, 8), d_local=(100, 8)), record(HERE, p_d=(100, 8), d_local=(40, 8)))
    verdict = t.verdicts(1, 1)[tied.slot]
    assert (verdict.path, verdict.row.source, verdict.row.exact) == (Route.D_LOCAL, HERE, False)
    assert verdict.cell == str(tied)


def test_where_all_is_tied_the_score_is_not_above_zero():
    t = table(record(HERE, p_d=(100, 8), d_local=(40, 9)))
    assert t.verdicts(0, 0)[HERE.slot].path is Route.P_D


def broken(**changes: object) -> CellRecord:
    return msgspec.structs.replace(record(HERE, p_d=(100, 8), d_local=(40, 9)), **changes)


@pytest.mark.parametrize("mean", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("path", ["p-d", "d-local", "p-d-pullback"])
@pytest.mark.parametrize("kind", ["ttft", "tpot"])
def test_a_figure_that_is_none_is_refused(mean, path, kind):
    good = broken()
    bad = figures(mean, 8) if kind == "ttft" else figures(100, mean)
    with pytest.raises(TableError, match=rf"{HERE}.*{kind}_ms"):
        table(broken(paths={**good.paths, path: bad}))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (broken(context="enormous"), "no such cell"),
        (broken(ratio="odd"), "no such cell"),
        (broken(qps=3), "no such cell"),
        (broken(qps=math.nan), "no such cell"),
        (broken(paths={}), "has no figures"),
        (broken(paths={"replica": figures(1, 1)}), "no path of the table"),
        (broken(paths={"p-d": figures(100, 8)}), "no cell was measured on both"),
        (broken(paths={"p-d": figures(100, 8, n=-1)}), "sd 0.0 or n -1"),
        (
            broken(
                paths={"p-d": PathEstimate(ttft_ms=Estimate(mean=1, sd=math.nan), tpot_ms=Estimate(mean=1))}
            ),
            "sd nan",
        ),
    ],
)
def test_a_cell_that_is_wrong_is_refused(cell, message):
    with pytest.raises(TableError, match=message):
        table(cell)


def test_a_table_that_is_wrong_is_refused():
    with pytest.raises(TableError, match="no cell"):
        table()
    with pytest.raises(TableError, match="twice"):
        table(broken(), broken())
    with pytest.raises(TableError, match="no model"):
        Table(msgspec.structs.replace(snapshot(broken()), model=""))
    with pytest.raises(TableError, match="version"):
        Table(snapshot(broken(), version=-1))
    with pytest.raises(TableError, match="weights"):
        Table(msgspec.structs.replace(snapshot(broken()), weights={"batch": (1.0, math.nan)}))
