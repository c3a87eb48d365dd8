"""Points -> what each cell was measured to cost: pure, and the same for a resumed profile."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from statistics import fmean, stdev

import msgspec

from planner.profile.capacity import MeasuredShape
from planner.profile.records import Flag, Point, TurnSample
from ppd.core import cells
from ppd.core.cells import Cell
from ppd.core.names import Route

BASE = (Route.P_D, Route.D_LOCAL)
# Turns of one point share its load, so that their spread says little of what another run would give.
_RUN_TO_RUN = 0.03  # of the mean, for one point
TRIES = 2  # of a flagged point
_RETREAT = 0.7  # of the rate at which they were flagged


class Figure(msgspec.Struct, frozen=True):
    """A mean with the spread of one turn, and how many turns and points it rests on."""

    mean: float
    sd: float
    n: int
    points: int

    @property
    def error(self) -> float:
        """The standard error of the mean, relative to it."""
        within = self.sd**2 / self.n / self.mean**2
        return float((within + _RUN_TO_RUN**2 / self.points) ** 0.5)


class PathFigures(msgspec.Struct, frozen=True):
    ttft: Figure
    tpot: Figure
    cached_share: float  # of the prompt, before the turn; -1 = the engines do not tell
    saturated: bool


_Measured = dict[Route, list[tuple[Point, list[TurnSample]]]]


class CellFigures(msgspec.Struct, frozen=True):
    rate: float  # conversations a second that were offered
    paths: dict[Route, PathFigures]

    @property
    def complete(self) -> bool:
        """Both paths that a score compares."""
        return all(path in self.paths for path in BASE)


def figures(points: Iterable[Point]) -> dict[Cell, CellFigures]:
    """Every cell that a turn was measured in.

    Paths are compared at one rate: the one measured last that has both. Failed points count for nothing, and
    saturated ones only where a path has no other: how long its queue was is a matter of when one looked.
    """
    by_cell: dict[Cell, dict[float, _Measured]] = {}
    for point in points:
        if point.flag is not Flag.FAILED:
            for cell, samples in _by_cell(point).items():
                rates = by_cell.setdefault(cell, {})
                rates[point.rate] = at_rate = rates.pop(point.rate, {})  # moves it to the end
                at_rate.setdefault(point.path, []).append((point, samples))
    found = {}
    for cell, rates in by_cell.items():
        each = [CellFigures(rate, {p: _pool(f) for p, f in paths.items()}) for rate, paths in rates.items()]
        found[cell] = next((one for one in reversed(each) if one.complete), each[-1])
    return found


def _by_cell(point: Point) -> dict[Cell, list[TurnSample]]:
    """Turn 2 has the cell's own shape; by later turns the context may have grown into the next class."""
    planned = cells.parse_cell(point.cell)
    found: dict[Cell, list[TurnSample]] = {}
    for sample in point.samples:
        if sample.ok:
            context = planned.context if sample.turn == 2 else cells.context_class(sample.n_ctx)
            found.setdefault(planned._replace(context=context), []).append(sample)
    return found


def _pool(measured: list[tuple[Point, list[TurnSample]]]) -> PathFigures:
    clean = [each for each in measured if each[0].flag is None]
    samples = [sample for _, listed in clean or measured for sample in listed]
    n_points = len(clean or measured)
    known = [s.cached_tokens / (s.n_ctx + s.n_in) for s in samples if s.cached_tokens >= 0]
    return PathFigures(
        _figure([sample.ttft_ms for sample in samples], n_points),
        _figure([sample.tpot_ms for sample in samples], n_points),
        fmean(known) if known else -1.0,
        saturated=not clean,
    )


def _figure(values: list[float], points: int) -> Figure:
    return Figure(fmean(values), stdev(values) if len(values) > 1 else fmean(values), len(values), points)


def conversation_s(points: Iterable[Point]) -> dict[MeasuredShape, float]:
    """Seconds that a conversation took: the slowest point's mean."""
    slowest: dict[MeasuredShape, float] = {}
    for point in points:
        taken = [sample.conversation_s for sample in point.samples if sample.ok]
        if taken:
            cell = cells.parse_cell(point.cell)
            shape = MeasuredShape(cell.context, cell.ratio)
            slowest[shape] = max(slowest.get(shape, 0.0), fmean(taken))
    return slowest


def ceilings(points: Iterable[Point]) -> dict[MeasuredShape, float]:
    """Rates that the cluster does not keep up with: those at which a path's points were flagged again and
    again, TRIES times at least, less a margin."""
    flagged = Counter((p.cell, p.path, p.rate) for p in points if p.flag)
    found: dict[MeasuredShape, float] = {}
    for (name, _, rate), times in flagged.items():
        if times >= TRIES:
            cell = cells.parse_cell(name)
            shape = MeasuredShape(cell.context, cell.ratio)
            found[shape] = min(found.get(shape, inf), _RETREAT * rate)
    return found


def complete(found: Mapping[Cell, CellFigures]) -> dict[Cell, CellFigures]:
    return {cell: each for cell, each in found.items() if each.complete}
