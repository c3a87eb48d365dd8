"""The table in memory: checked once, then read without a search.

Every possible cell points at the nearest cell that was measured on both paths (`cells.distance`), and the
verdicts of a pair of weights are worked out once, so that a decision is two array reads.
"""

from functools import lru_cache
from math import isfinite

import msgspec

from ppd.core import cells, score
from ppd.core.baseline import Baseline, baselines, interference, prefill_speed
from ppd.core.cells import Cell
from ppd.core.learning.link import LinkCost
from ppd.core.names import Route
from ppd.core.records import CellRecord, Estimate, TableSnapshot
from ppd.core.score import Expected

_TIE = 1e-9
_MAX_PAUSE_MS = 1e3
_MAX_WEIGHTS = 64  # verdict lists kept at once; SLO classes are few


class TableError(ValueError):
    """A snapshot that no decision may rest on; the message says what is wrong with it."""


class Row(msgspec.Struct, frozen=True):
    """What the table knows for one cell, be it from the cell itself or from the nearest measured one."""

    source: Cell  # the cell that the figures were measured in
    text: str  # `str(source)`
    exact: bool  # it is the cell that was asked for
    record: CellRecord
    expected: dict[Route, Expected]  # P_D and D_LOCAL always, P_D_PULLBACK where measured
    p_d: Expected
    d_local: Expected
    pullback: Expected | None
    baseline: Baseline


class Verdict(msgspec.Struct, frozen=True):
    """One cell's verdict under one pair of weights."""

    path: Route
    score: float  # D-local's, > 0 speaks for it
    cell: str  # the cell that was asked for
    row: Row  # the row that decided; not exact where the cell was empty or tied


class Table:
    """A TableSnapshot, ready for decisions. Raises TableError if the snapshot cannot be trusted.

    A cell with only one of P->D and D-local (the other one failed) is valid but cannot be scored, so the
    nearest complete cell stands in for it.
    """

    def __init__(self, snapshot: TableSnapshot) -> None:
        self.snapshot = snapshot
        self.model = snapshot.model
        self.placement = snapshot.placement
        self.version = snapshot.version
        self.explore_share = snapshot.explore_share
        measured = _measured(snapshot)
        found = baselines(measured, snapshot.placement)
        self.prefill_tokens_per_s = prefill_speed(found)  # a lower bound, from the figures themselves
        # What a locally prefilled token adds to each step of D: learned from load reports, or by the cells.
        self.interference_learned = snapshot.pause_ms >= 0
        self.interference_ms = (
            snapshot.pause_ms if self.interference_learned else interference(measured, found)
        )
        self.survival = snapshot.survival
        self.link = LinkCost(snapshot.link_bytes_per_s, snapshot.link_setup_ms)
        self._rows = _dense_rows(measured, found)
        self._verdicts: dict[tuple[float, float], list[Verdict]] = {}

    def lookup(self, slot: int) -> Row:
        """The row for `cells.cell_slot(...)`."""
        return self._rows[slot]

    def verdicts(self, w_ttft: float, w_tpot: float) -> list[Verdict]:
        """The verdict of every cell by its slot; worked out (about a millisecond) when first asked for."""
        found = self._verdicts.get((w_ttft, w_tpot))
        if found is None:
            if len(self._verdicts) >= _MAX_WEIGHTS:
                self._verdicts.clear()
            found = self._verdicts[w_ttft, w_tpot] = _judge(self._rows, w_ttft, w_tpot)
        return found


def _judge(rows: list[Row], w_ttft: float, w_tpot: float) -> list[Verdict]:
    scores = [score.score(row.p_d, row.d_local, w_ttft, w_tpot) for row in rows]
    decided = [(row, s) for row, s in zip(rows, scores, strict=True) if row.exact and abs(s) > _TIE]
    verdicts = []
    for cell, row, s in zip(cells.CELLS, rows, scores, strict=True):
        if abs(s) <= _TIE and decided:
            row, s = min(decided, key=lambda each: cells.distance(cell, each[0].source))
            row = msgspec.structs.replace(row, exact=False)
        verdicts.append(Verdict(Route.D_LOCAL if s > 0 else Route.P_D, s, str(cell), row))
    return verdicts


def _measured(snapshot: TableSnapshot) -> dict[Cell, CellRecord]:
    """The cells that have both paths, after every check."""
    _check_head(snapshot)
    seen: set[Cell] = set()
    measured: dict[Cell, CellRecord] = {}
    for record in snapshot.cells:
        cell = _check_cell(record)
        if cell in seen:
            raise TableError(f"cell {cell} appears twice")
        seen.add(cell)
        if Route.P_D in record.paths and Route.D_LOCAL in record.paths:
            measured[cell] = record
    if not measured:
        raise TableError("no cell was measured on both paths")
    return measured


def _dense_rows(measured: dict[Cell, CellRecord], found: dict[Cell, Baseline]) -> list[Row]:
    own = {cell: _row(cell, record, found[cell]) for cell, record in measured.items()}
    near = {cell: msgspec.structs.replace(row, exact=False) for cell, row in own.items()}
    nearest = _nearest(tuple(measured))
    return [own.get(cell) or near[nearest[slot]] for slot, cell in enumerate(cells.CELLS)]


@lru_cache(maxsize=16)
def _nearest(measured: tuple[Cell, ...]) -> list[Cell]:
    """For each cell the one that stands in for it. Versions of one table have the same cells, mostly."""
    return [min(measured, key=lambda other: cells.distance(cell, other)) for cell in cells.CELLS]


def _row(source: Cell, record: CellRecord, baseline: Baseline) -> Row:
    expected = {
        Route(path): Expected(e.ttft_ms.mean, e.tpot_ms.mean) for path, e in sorted(record.paths.items())
    }
    return Row(
        source,
        str(source),
        True,
        record,
        expected,
        expected[Route.P_D],
        expected[Route.D_LOCAL],
        expected.get(Route.P_D_PULLBACK),
        baseline,
    )


def _check_head(snapshot: TableSnapshot) -> None:
    if not snapshot.model or not snapshot.placement:
        raise TableError("the table names no model or no placement")
    if snapshot.version < 0:
        raise TableError(f"version {snapshot.version} is below 0")
    if not snapshot.explore_share <= 1:
        raise TableError(f"share of exploration {snapshot.explore_share} is above 1")
    if not snapshot.pause_ms <= _MAX_PAUSE_MS:
        raise TableError(f"a pause of {snapshot.pause_ms} ms a token is more than any engine's")
    if not all(isfinite(x) and x >= 0 for x in (snapshot.link_bytes_per_s, snapshot.link_setup_ms)):
        raise TableError("the speed of KV transfers is not finite and >= 0")
    if not all(row and all(0 <= p <= 1 for p in row) for row in snapshot.survival):
        raise TableError("chances of survival are not between 0 and 1")
    for what, pairs in (("weights", snapshot.weights), ("limits", snapshot.limits)):
        for name, pair in pairs.items():
            if not all(isfinite(each) and each >= 0 for each in pair):
                raise TableError(f"{what} of {name!r} are not finite and >= 0: {pair}")


def _check_cell(record: CellRecord) -> Cell:
    try:
        cell = cells.make_cell(record.context, record.ratio, record.qps)
    except ValueError as error:
        raise TableError(f"no such cell: {error}") from error
    if not (isfinite(record.measured_qps) and record.measured_qps >= 0):
        raise TableError(f"cell {cell}: measured at a rate of {record.measured_qps}")
    known = {Route.P_D.value, Route.D_LOCAL.value, Route.P_D_PULLBACK.value}
    if not record.paths:
        raise TableError(f"cell {cell} has no figures")
    for path, estimate in record.paths.items():
        if path not in known:
            raise TableError(f"cell {cell}: {path!r} is no path of the table")
        _check_estimate(f"cell {cell}, {path}, ttft_ms", estimate.ttft_ms)
        _check_estimate(f"cell {cell}, {path}, tpot_ms", estimate.tpot_ms)
    return cell


def _check_estimate(what: str, estimate: Estimate) -> None:
    if not (isfinite(estimate.mean) and estimate.mean > 0):
        raise TableError(f"{what}: mean {estimate.mean} is not above 0")
    if not (isfinite(estimate.sd) and estimate.sd >= 0 and isfinite(estimate.n) and estimate.n >= 0):
        raise TableError(f"{what}: sd {estimate.sd} or n {estimate.n} is not finite and >= 0")
