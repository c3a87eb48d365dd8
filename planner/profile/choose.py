"""Where the next seconds are best spent: on the cell that takes most doubt out of the table for its time.

The doubt about a cell is the score that a wrong verdict would cost there, as expected now: with score s and
its standard error e, that is e * phi(s/e) - |s| * Phi(-|s|/e). It is large where the sign is unsure and
matters, and small for a clear verdict and for a tie that is known to be one. A cell that was not measured
takes the score of the nearest one, with an error that grows by DOUBT with each doubling between them
(`cells.distance`); so the first cells measured are those that stand for many others, and repeats come where
the sign is still open. Doubt is averaged over the SLO classes and summed over all cells alike.
"""

from collections.abc import Iterable, Mapping
from math import erf, exp, inf, pi, sqrt

import msgspec

from planner.profile.figures import CellFigures, PathFigures
from ppd.core.cells import Cell, distance
from ppd.core.names import Route
from ppd.core.score import Weights

DOUBT = 0.1  # by which TTFT's and TPOT's share of the score are unsure, for each doubling
_BLANK = 1.0  # doubt about a cell while nothing at all was measured


class Belief(msgspec.Struct, frozen=True):
    """Both parts of a score, with their variances."""

    ttft: float
    tpot: float
    ttft_var: float
    tpot_var: float

    def doubt(self, classes: Iterable[Weights], doublings: float, again: bool = False) -> float:
        """`doublings` away from the cell that was measured; `again`: once it was measured twice as often."""
        share = 0.5 if again else 1.0
        far = (DOUBT * doublings) ** 2
        found = [
            _loss(
                w.ttft * self.ttft - w.tpot * self.tpot,
                sqrt(w.ttft**2 * (share * self.ttft_var + far) + w.tpot**2 * (share * self.tpot_var + far)),
            )
            / (w.ttft + w.tpot)
            for w in classes
            if w.ttft + w.tpot > 0
        ]
        return sum(found) / max(1, len(found))


def belief(measured: CellFigures) -> Belief:
    """Of a complete cell."""
    x0, x1 = measured.paths[Route.P_D], measured.paths[Route.D_LOCAL]
    ttft, ttft_var = _change(x0, x1, "ttft")
    tpot, tpot_var = _change(x0, x1, "tpot")
    return Belief(-ttft, tpot, ttft_var, tpot_var)


def _change(x0: PathFigures, x1: PathFigures, quantity: str) -> tuple[float, float]:
    """The relative change from x = 0 to x = 1 and its variance, to first order."""
    before, after = getattr(x0, quantity), getattr(x1, quantity)
    ratio = after.mean / before.mean
    return ratio - 1, ratio**2 * (before.error**2 + after.error**2)


def _loss(score: float, error: float) -> float:
    if error <= 0:
        return 0.0
    z = abs(score) / error
    density = exp(-z * z / 2) / sqrt(2 * pi)
    below = (1 - erf(z / sqrt(2))) / 2
    return error * density - abs(score) * below


class Doubt:
    """How much the table is in doubt, and what measuring one cell (again) would take away."""

    def __init__(
        self, grid: Iterable[Cell], measured: Mapping[Cell, CellFigures], classes: Iterable[Weights]
    ) -> None:
        self._classes = tuple(classes)
        self._measured = {cell: belief(each) for cell, each in measured.items()}
        self._near = {cell: self._nearest(cell) for cell in grid}

    def _nearest(self, cell: Cell) -> tuple[float, Belief | None]:
        if not self._measured:
            return inf, None
        near = min(self._measured, key=lambda other: distance(cell, other))
        return distance(cell, near), self._measured[near]

    def at(self, cell: Cell) -> float:
        doublings, near = self._near[cell]
        return _BLANK if near is None else near.doubt(self._classes, doublings)

    def removed_by(self, cell: Cell) -> float:
        """What a visit to `cell` is expected to take away, all over the grid."""
        again = cell in self._measured
        return sum(
            self.at(other) - self._after(other, doublings, again)
            for other, (now, _) in self._near.items()
            if (doublings := distance(cell, other)) < now or (again and doublings == now)
        )

    def _after(self, cell: Cell, doublings: float, again: bool) -> float:
        _, near = self._near[cell]
        return near.doubt(self._classes, doublings, again) if near else _BLANK * min(1.0, DOUBT * doublings)


def best(doubt: Doubt, costs_s: Mapping[Cell, float], left_s: float) -> Cell | None:
    """The cell that removes most doubt a second, of those that fit into `left_s`; None if none fits."""
    worth = {cell: doubt.removed_by(cell) / cost for cell, cost in costs_s.items() if cost <= left_s}
    return max(worth, key=lambda cell: worth[cell], default=None)
