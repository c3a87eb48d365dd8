import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core import cells
from ppd.core.cells import CELLS, Cell, Context, Ratio

pytestmark = pytest.mark.unit
counts = st.integers(0, 200_000)
rates = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("ratio", list(Ratio))
def test_every_type_is_the_class_of_its_own_shape(ratio):
    assert cells.ratio_class(*cells.SHAPES[ratio]) is ratio


@pytest.mark.parametrize(
    ("n_ctx", "expected"),
    [(0, "small"), (512, "small"), (513, "large"), (4096, "large"), (4097, "huge"), (10**9, "huge")],
)
def test_context_borders(n_ctx, expected):
    assert cells.context_class(n_ctx) == expected


@pytest.mark.parametrize(
    ("n_in", "n_out", "expected"),
    [
        (10, 64, Ratio.TINY),
        (10, 65, Ratio.SHORT_GEN),
        (64, 257, Ratio.LONG_GEN),
        (64, 513, Ratio.VERY_LONG_GEN),
        (64, 256, Ratio.SMALL_BAL),  # exactly 0.25 is balanced
        (65, 256, Ratio.MID_BAL),
        (128, 64, Ratio.MID_BAL),  # exactly 2 is balanced
        (129, 64, Ratio.MID_PASTE),
        (256, 64, Ratio.MID_PASTE),
        (257, 64, Ratio.BIG_PASTE),
        (513, 64, Ratio.HUGE_PASTE),
        (5, 0, Ratio.MID_PASTE),  # no output predicted
        (0, 0, Ratio.TINY),
    ],
)
def test_ratio_borders(n_in, n_out, expected):
    assert cells.ratio_class(n_in, n_out) is expected


@pytest.mark.parametrize(
    ("qps", "level"),
    [
        (0, 0.5),
        (0.70, 0.5),
        (0.72, 1),
        (5, 6),
        (4.8, 4),
        (1e9, 20),
        (math.nan, 0.5),
        (-1, 0.5),
        (math.inf, 20),
    ],
)
def test_qps_goes_to_the_nearest_level_by_ratio(qps, level):
    assert cells.qps_level(qps) == level


def test_slots_are_dense_and_text_names_the_cell():
    assert [cell.slot for cell in CELLS] == list(range(cells.N_CELLS))
    assert all(cells.parse_cell(str(cell)) == cell for cell in CELLS)
    assert str(Cell(Context.LARGE, Ratio.MID_BAL, 4.0)) == "large/mid_bal@4"


@pytest.mark.parametrize(
    "text", ["", "large", "large/mid_bal", "large/mid_bal@3", "big/mid_bal@4", "large/x@4", "a/b@c"]
)
def test_other_text_is_no_cell(text):
    with pytest.raises(ValueError, match="is no cell"):
        cells.parse_cell(text)


@given(counts, counts, counts, rates)
def test_any_turn_has_a_cell_and_its_slot(n_ctx, n_in, n_out, qps):
    cell = cells.cell_of(n_ctx, n_in, n_out, qps)
    assert cell.slot == cells.cell_slot(n_ctx, n_in, n_out, qps)
    assert (cell.context, cell.ratio) == (cells.context_class(n_ctx), cells.ratio_class(n_in, n_out))


@given(st.sampled_from(CELLS), st.sampled_from(CELLS), st.sampled_from(CELLS))
def test_distance_is_a_metric(a, b, c):
    assert cells.distance(a, b) == pytest.approx(cells.distance(b, a))
    assert (cells.distance(a, b) == 0) == (a == b)
    assert cells.distance(a, c) <= cells.distance(a, b) + cells.distance(b, c) + 1e-9
