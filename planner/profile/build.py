"""Figures -> the table that the planner serves."""

import time
from collections.abc import Mapping

from planner.profile.figures import CellFigures, Figure
from planner.profile.records import Head, ProfileError
from ppd.core.cells import Cell
from ppd.core.names import Provenance
from ppd.core.records import CellRecord, Estimate, PathEstimate, TableSnapshot
from ppd.core.table import Table, TableError


def snapshot(head: Head, found: Mapping[Cell, CellFigures]) -> TableSnapshot:
    """Version 1; the planner numbers it anew. Raises ProfileError if no cell has both paths."""
    turns = sum(path.ttft.n for each in found.values() for path in each.paths.values())
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(head.started_unix_s))
    made = TableSnapshot(
        model=head.model,
        placement=head.placement,
        version=1,
        hardware=head.hardware,
        created_unix_s=time.time(),
        source=f"profile of {day} UTC, {len(found)} cells, {turns} turns",
        cells=[_cell(cell, found[cell]) for cell in sorted(found, key=lambda each: each.slot)],
    )
    try:
        Table(made)
    except TableError as error:
        raise ProfileError(f"the points do not make a table yet: {error}") from error
    return made


def _cell(cell: Cell, measured: CellFigures) -> CellRecord:
    return CellRecord(
        context=cell.context,
        ratio=cell.ratio,
        qps=cell.qps,
        measured_qps=_short(measured.rate),
        paths={
            path.value: PathEstimate(
                ttft_ms=_estimate(each.ttft), tpot_ms=_estimate(each.tpot), provenance=Provenance.MEASURED
            )
            for path, each in measured.paths.items()
        },
    )


def _estimate(figure: Figure) -> Estimate:
    return Estimate(mean=_short(figure.mean), sd=_short(figure.sd), n=figure.n)


def _short(value: float) -> float:
    """Six digits: a table is read by people too."""
    return float(f"{value:.6g}")
