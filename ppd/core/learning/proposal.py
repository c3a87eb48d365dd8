"""The table that the learner would publish in place of the present one, and what speaks for doing so."""

from collections.abc import Container, Mapping
from math import log

import msgspec

from ppd.core import cells
from ppd.core.cells import Cell
from ppd.core.learning.learner import Learner
from ppd.core.learning.ratios import Belief
from ppd.core.learning.verdicts import MIN_TURNS, Cost, settled
from ppd.core.names import Provenance, Route
from ppd.core.records import CellRecord, Estimate, PathEstimate
from ppd.core.score import Expected, Weights
from ppd.core.table import Table


class Proposal(msgspec.Struct, frozen=True):
    cells: list[CellRecord]
    flips: list[str]  # "cell class": the verdicts that change, each with evidence
    shift: float  # the largest change of a measured path's figures, in logarithms


def propose(learner: Learner, published: Table, classes: Mapping[str, Weights]) -> Proposal:
    """`published` with all that was learned in it.

    A cell takes over its new figures as far as only those verdicts change for which there is evidence, and
    their scale in any case. Cells that were visited but not in the table join it.
    """
    own = {
        cells.make_cell(record.context, record.ratio, record.qps): record
        for record in published.snapshot.cells
    }
    visited = {cells.parse_cell(name) for name in learner.learned.ratios.cells}
    proposed: list[CellRecord] = []
    flips: list[str] = []
    shift = 0.0
    for cell in sorted({*own, *visited}, key=lambda each: each.slot):
        before = published.lookup(cell.slot).expected
        now = costs(learner, cell, before)
        figures, proven = settled(before, now, classes)
        flips += [f"{cell} {name}" for name in proven]
        shift = max(shift, _shift(before, figures, now))
        proposed.append(_record(cell, figures, now, own.get(cell)))
    return Proposal(proposed, flips, shift)


def costs(learner: Learner, cell: Cell, known: Container[Route]) -> dict[Route, Cost]:
    """What each path is believed to cost; one that is not `known` only once it was measured enough."""
    name, now_s, ratios = str(cell), learner.learned.at_s, learner.learned.ratios
    found = {}
    for path in (Route.P_D, Route.D_LOCAL, Route.P_D_PULLBACK):
        ttft, tpot = ratios.ttft(name, path, now_s), ratios.tpot(name, path, now_s)
        if path in known or ttft.n >= MIN_TURNS:
            prior = learner.prior_cost(cell, path)
            expected = Expected(prior.ttft_ms * ttft.ratio, prior.tpot_ms * tpot.ratio)
            found[path] = Cost(expected, ttft, tpot)
    return found


def _shift(
    before: Mapping[Route, Expected], figures: Mapping[Route, Expected], now: Mapping[Route, Cost]
) -> float:
    """How far the figures move, in logarithms, of those paths that enough turns measured in this cell."""
    moved = [0.0]
    for path, old in before.items():
        if now[path].ttft.n >= MIN_TURNS:
            new = figures[path]
            moved += [abs(log(new.ttft_ms / old.ttft_ms)), abs(log(new.tpot_ms / old.tpot_ms))]
    return max(moved)


def _record(
    cell: Cell, figures: Mapping[Route, Expected], now: Mapping[Route, Cost], own: CellRecord | None
) -> CellRecord:
    paths = dict(own.paths) if own else {}
    for path, expected in figures.items():
        cost, old = now[path], paths.get(path.value)
        if old is None or cost.ttft.n >= 1:
            paths[path.value] = PathEstimate(
                ttft_ms=_online(expected.ttft_ms, cost.ttft),
                tpot_ms=_online(expected.tpot_ms, cost.tpot),
                provenance=Provenance.ONLINE,
            )
        else:
            paths[path.value] = PathEstimate(
                ttft_ms=_scaled(old.ttft_ms, expected.ttft_ms),
                tpot_ms=_scaled(old.tpot_ms, expected.tpot_ms),
                provenance=old.provenance,
            )
    measured_qps = own.measured_qps if own else 0.0
    return CellRecord(
        context=cell.context, ratio=cell.ratio, qps=cell.qps, measured_qps=measured_qps, paths=paths
    )


def _online(mean: float, belief: Belief) -> Estimate:
    return Estimate(mean=_short(mean), sd=_short(mean * belief.sd), n=round(belief.n, 1))


def _scaled(old: Estimate, mean: float) -> Estimate:
    return Estimate(mean=_short(mean), sd=_short(old.sd * mean / old.mean), n=old.n)


def _short(value: float) -> float:
    """Six digits: a table is read by people too."""
    return float(f"{value:.6g}")
