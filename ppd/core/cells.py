"""The grid of the table: context class x in/out ratio class x QPS level, and how far two cells lie apart.

Classes and levels are those of PPD (arXiv:2603.13358); tokens are tokens, rates are conversations a second.
"""

from bisect import bisect_left
from enum import StrEnum
from itertools import pairwise
from math import log2, sqrt
from typing import NamedTuple


class Context(StrEnum):
    """The conversation's tokens before this turn: up to 512, up to 4,096, above."""

    SMALL = "small"
    LARGE = "large"
    HUGE = "huge"


class Ratio(StrEnum):
    """Nine types of turn, by the tokens that come in and go out."""

    TINY = "tiny"
    SHORT_GEN = "short_gen"
    LONG_GEN = "long_gen"
    VERY_LONG_GEN = "very_long_gen"
    SMALL_BAL = "small_bal"
    MID_BAL = "mid_bal"
    MID_PASTE = "mid_paste"
    BIG_PASTE = "big_paste"
    HUGE_PASTE = "huge_paste"


class Shape(NamedTuple):
    """Tokens of the turn that a type was measured with."""

    n_in: int
    n_out: int


QPS_LEVELS = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0)
# A context class was measured after one turn of 128 -> 128 or 1,024 -> 1,024; huge is four times large.
CONTEXT_TOKENS = {Context.SMALL: 256, Context.LARGE: 2048, Context.HUGE: 8192}
SHAPES = {
    Ratio.TINY: Shape(16, 32),
    Ratio.SHORT_GEN: Shape(32, 256),
    Ratio.LONG_GEN: Shape(32, 512),
    Ratio.VERY_LONG_GEN: Shape(64, 1024),
    Ratio.SMALL_BAL: Shape(64, 64),
    Ratio.MID_BAL: Shape(128, 128),
    Ratio.MID_PASTE: Shape(256, 64),
    Ratio.BIG_PASTE: Shape(512, 64),
    Ratio.HUGE_PASTE: Shape(1024, 32),
}
_CONTEXTS = tuple(Context)
_RATIOS = tuple(Ratio)
_CONTEXT_INDEX = {c: i for i, c in enumerate(_CONTEXTS)}
_RATIO_INDEX = {r: i for i, r in enumerate(_RATIOS)}
_QPS_INDEX = {q: i for i, q in enumerate(QPS_LEVELS)}
# The border between two levels is their geometric mean: load is felt as a factor.
_QPS_BORDERS = tuple(sqrt(a * b) for a, b in pairwise(QPS_LEVELS))
N_CELLS = len(_CONTEXTS) * len(_RATIOS) * len(QPS_LEVELS)


class Cell(NamedTuple):
    context: Context
    ratio: Ratio
    qps: float  # one of QPS_LEVELS

    def __str__(self) -> str:
        return f"{self.context}/{self.ratio}@{self.qps:g}"

    @property
    def slot(self) -> int:
        """This cell's place in a dense array of N_CELLS."""
        row = _CONTEXT_INDEX[self.context] * len(_RATIOS) + _RATIO_INDEX[self.ratio]
        return row * len(QPS_LEVELS) + _QPS_INDEX[self.qps]


def all_cells() -> tuple[Cell, ...]:
    """Every cell of the grid, in the order of `Cell.slot`."""
    return tuple(Cell(c, r, q) for c in _CONTEXTS for r in _RATIOS for q in QPS_LEVELS)


CELLS = all_cells()


def parse_cell(text: str) -> Cell:
    """The cell that `str(cell)` names, such as `large/mid_bal@4`. Raises ValueError for anything else."""
    try:
        context, rest = text.split("/")
        ratio, qps = rest.split("@")
        return make_cell(context, ratio, float(qps))
    except ValueError as error:
        raise ValueError(f"{text!r} is no cell: write for example large/mid_bal@4 ({error})") from error


def make_cell(context: str, ratio: str, qps: float) -> Cell:
    """The cell of these names. Raises ValueError for an unknown class, and for a QPS that is no level."""
    cell = Cell(Context(context), Ratio(ratio), float(qps))
    if cell.qps not in _QPS_INDEX:
        raise ValueError(f"{qps} is no QPS level")
    return cell


def context_class(n_ctx: int) -> Context:
    if n_ctx <= 512:
        return Context.SMALL
    return Context.LARGE if n_ctx <= 4096 else Context.HUGE


def ratio_class(n_in: int, n_out: int) -> Ratio:
    """The type of a turn.

    Below 0.25 in/out it is decode-heavy (split by output at 64, 256, 512), up to 2 balanced (split by input
    at 64), above that a paste (split at 256, 512). The paper's own tiny turn, 16 -> 32, has a ratio of 0.5
    and would be read as small_bal, so a balanced turn of at most 32 tokens in (the geometric mean of the two
    types' inputs) is tiny here: every type is the class of its own shape.
    """
    if n_in * 4 < n_out:
        if n_out <= 64:
            return Ratio.TINY
        if n_out <= 256:
            return Ratio.SHORT_GEN
        return Ratio.LONG_GEN if n_out <= 512 else Ratio.VERY_LONG_GEN
    if n_in <= 2 * n_out:
        if n_in <= 32:
            return Ratio.TINY
        return Ratio.SMALL_BAL if n_in <= 64 else Ratio.MID_BAL
    if n_in <= 256:
        return Ratio.MID_PASTE
    return Ratio.BIG_PASTE if n_in <= 512 else Ratio.HUGE_PASTE


def qps_level(qps: float) -> float:
    """The level nearest to `qps` by ratio; 0 and NaN are the lowest."""
    return QPS_LEVELS[_qps_index(qps)]


def _qps_index(qps: float) -> int:
    return bisect_left(_QPS_BORDERS, qps) if qps == qps else 0


def cell_of(n_ctx: int, n_in: int, n_out: int, qps: float) -> Cell:
    return CELLS[cell_slot(n_ctx, n_in, n_out, qps)]


def cell_slot(n_ctx: int, n_in: int, n_out: int, qps: float) -> int:
    """`cell_of(...).slot`, without making the cell."""
    row = _CONTEXT_INDEX[context_class(n_ctx)] * len(_RATIOS) + _RATIO_INDEX[ratio_class(n_in, n_out)]
    return row * len(QPS_LEVELS) + _qps_index(qps)


def distance(a: Cell, b: Cell) -> float:
    """How many doublings lie between two cells: of context, of input, of output and of rate, added up."""
    shape_a, shape_b = SHAPES[a.ratio], SHAPES[b.ratio]
    return (
        abs(log2(CONTEXT_TOKENS[a.context] / CONTEXT_TOKENS[b.context]))
        + abs(log2(shape_a.n_in / shape_b.n_in))
        + abs(log2(shape_a.n_out / shape_b.n_out))
        + abs(log2(a.qps / b.qps))
    )
