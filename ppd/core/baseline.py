"""The load that a cell's figures already contain, worked out from the table itself.

A measured TTFT is service plus the queueing usual at that rate. To put the queue of now in place of the
usual one, one has to know both parts, and how much work a turn of the cell's shape was.
"""

from collections.abc import Mapping

import msgspec

from ppd.core.cells import CONTEXT_TOKENS, SHAPES, Cell, Context, Ratio
from ppd.core.names import Route
from ppd.core.placement import PlacementError, parse_placement
from ppd.core.records import CellRecord


class Baseline(msgspec.Struct, frozen=True):
    """What one cell was measured under."""

    p_d_idle_ms: float  # TTFT where this shape met the least queueing
    d_local_idle_ms: float
    d_local_excess_ms: float  # TTFT beyond that, at the cell's own rate
    p_tokens: int  # that P had to compute: the first turn's answer and the new prompt
    d_tokens: int  # that D had to compute: the new prompt
    decoded: int  # tokens that D decoded for each local prefill: both turns' answers
    running: float  # requests in the batch of one D, by Little's law

    @property
    def held(self) -> float:
        """Prompt tokens that D computed between two tokens of a stream, all its sessions taken together."""
        return self.running * self.d_tokens / self.decoded


def baselines(measured: Mapping[Cell, CellRecord], placement: str) -> dict[Cell, Baseline]:
    """The baseline of every measured cell. All of them must hold figures for P->D and D-local."""
    idle: dict[tuple[Context, Ratio], tuple[float, float]] = {}
    for cell, record in measured.items():
        shape = cell.context, cell.ratio
        p_d, d_local = _ttft(record, Route.P_D), _ttft(record, Route.D_LOCAL)
        known = idle.get(shape, (p_d, d_local))
        idle[shape] = min(known[0], p_d), min(known[1], d_local)
    decodes = _decodes(placement)
    return {cell: _baseline(cell, record, idle, decodes) for cell, record in measured.items()}


def prefill_speed(found: Mapping[Cell, Baseline]) -> float:
    """Tokens a second that P reached at least: its best cell, hand-off included. A lower bound."""
    return max(1e3 * b.p_tokens / b.p_d_idle_ms for b in found.values())


def interference(measured: Mapping[Cell, CellRecord], found: Mapping[Cell, Baseline]) -> float:
    """Ms that a locally prefilled token adds to a step of D: the slope, through the origin, of TPOT's rise
    from x = 0 to x = 1 over `Baseline.held`. Between 0 and the time of a token on P.

    The shipped tables give 0.018 to 0.027 ms, an H100's prefill of 37,000 to 55,000 tokens a second.
    """
    rise = {
        cell: _tpot(record, Route.D_LOCAL) - _tpot(record, Route.P_D) for cell, record in measured.items()
    }
    slope = sum(rise[cell] * b.held for cell, b in found.items()) / sum(b.held**2 for b in found.values())
    return min(max(slope, 0.0), 1e3 / prefill_speed(found))


def _baseline(
    cell: Cell,
    record: CellRecord,
    idle: Mapping[tuple[Context, Ratio], tuple[float, float]],
    decodes: int,
) -> Baseline:
    p_d_idle, d_local_idle = idle[cell.context, cell.ratio]
    answer = CONTEXT_TOKENS[cell.context] // 2  # the first turn was as long in as out
    n_in, n_out = SHAPES[cell.ratio]
    rate = (record.measured_qps or cell.qps) / decodes
    return Baseline(
        p_d_idle_ms=p_d_idle,
        d_local_idle_ms=d_local_idle,
        d_local_excess_ms=_ttft(record, Route.D_LOCAL) - d_local_idle,
        p_tokens=answer + n_in,
        d_tokens=n_in,
        decoded=answer + n_out,
        running=rate * (answer + n_out) * _tpot(record, Route.D_LOCAL) / 1e3,
    )


def _ttft(record: CellRecord, path: Route) -> float:
    return record.paths[path.value].ttft_ms.mean


def _tpot(record: CellRecord, path: Route) -> float:
    return record.paths[path.value].tpot_ms.mean


def _decodes(placement: str) -> int:
    try:
        return parse_placement(placement).decode or 1
    except PlacementError:  # a table may carry a name of its own
        return 1
