"""Tables for the tests of the core."""

from ppd.core.cells import Cell
from ppd.core.records import CellRecord, Estimate, PathEstimate, TableSnapshot
from ppd.core.table import Table


def figures(ttft_ms: float, tpot_ms: float, n: float = 10) -> PathEstimate:
    return PathEstimate(ttft_ms=Estimate(mean=ttft_ms, n=n), tpot_ms=Estimate(mean=tpot_ms, n=n))


def record(cell: Cell, **paths: tuple[float, float]) -> CellRecord:
    """`p_d=(ttft, tpot), d_local=(ttft, tpot)`; `_` stands for `-`."""
    return CellRecord(
        context=cell.context,
        ratio=cell.ratio,
        qps=cell.qps,
        paths={name.replace("_", "-"): figures(*pair) for name, pair in paths.items()},
    )


def snapshot(*cells: CellRecord, version: int = 1) -> TableSnapshot:
    return TableSnapshot(model="m", placement="1P1D", version=version, cells=list(cells))


def table(*cells: CellRecord) -> Table:
    return Table(snapshot(*cells))
