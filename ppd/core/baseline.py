"""The load that a cell's figures already contain, worked out from the table itself.

A measured TTFT is service plus the queueing usual at that rate. To put the queue of now in place of the
usual one, one has to know both parts, and how much work a turn of the cell's shape was.
"""

from collections.abc import Mapping

import msgspec

from ppd.core.cells import CONTEXT_TOKENS, SHAPES, Cell, Context, Ratio
from ppd.core.names import Path
from ppd.core.placement import PlacementError, parse_placement
from ppd.core.records import CellRecord


class Baseline(msgspec.Struct, frozen=True):
    """What one cell was measured under."""

    p_d_idle_ms: float  # TTFT where this shape met the least queueing
    d_local_idle_ms: float
    d_local_excess_ms: float  # TTFT beyond that, at the cell's own rate
    p_tokens: int  # that P had to compute: the first turn's answer and the new prompt
    d_tokens: int  # that D had to compute: the new prompt
    n_out: int
    running: float  # requests in the batch of one D, by Little's law


def baselines(measured: Mapping[Cell, CellRecord], placement: str) -> dict[Cell, Baseline]:
    """The baseline of every measured cell. All of them must hold figures for P->D and D-local."""
    idle: dict[tuple[Context, Ratio], tuple[float, float]] = {}
    for cell, record in measured.items():
        shape = cell.context, cell.ratio
        p_d, d_local = _ttft(record, Path.P_D), _ttft(record, Path.D_LOCAL)
        known = idle.get(shape, (p_d, d_local))
        idle[shape] = min(known[0], p_d), min(known[1], d_local)
    decodes = _decodes(placement)
    return {cell: _baseline(cell, record, idle, decodes) for cell, record in measured.items()}


def prefill_speed(found: Mapping[Cell, Baseline]) -> float:
    """Tokens a second that P reached at least: its best cell, hand-off included. A lower bound."""
    return max(1e3 * b.p_tokens / b.p_d_idle_ms for b in found.values())


def _baseline(
    cell: Cell,
    record: CellRecord,
    idle: Mapping[tuple[Context, Ratio], tuple[float, float]],
    decodes: int,
) -> Baseline:
    p_d_idle, d_local_idle = idle[cell.context, cell.ratio]
    answer = CONTEXT_TOKENS[cell.context] // 2  # the first turn was as long in as out
    n_in, n_out = SHAPES[cell.ratio]
    tpot_s = record.paths[Path.D_LOCAL.value].tpot_ms.mean / 1e3
    return Baseline(
        p_d_idle_ms=p_d_idle,
        d_local_idle_ms=d_local_idle,
        d_local_excess_ms=_ttft(record, Path.D_LOCAL) - d_local_idle,
        p_tokens=answer + n_in,
        d_tokens=n_in,
        n_out=n_out,
        running=cell.qps / decodes * (answer + n_out) * tpot_s,
    )


def _ttft(record: CellRecord, path: Path) -> float:
    return record.paths[path.value].ttft_ms.mean


def _decodes(placement: str) -> int:
    try:
        return parse_placement(placement).decode or 1
    except PlacementError:  # a table may carry a name of its own
        return 1
