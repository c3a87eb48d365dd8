"""Estimates that the rival policies share: queues, work and transfer from load reports, without a table."""

import msgspec

from ppd.core.decision import Turn, View, WorkerView
from ppd.core.live import prefill_speed
from ppd.core.table import Table

_SPEED_TOKENS_PER_S = 10_000.0  # of a worker that has told none, when there is no table to tell


class Costs(msgspec.Struct, frozen=True):
    """What each path is made of, in ms."""

    p_queue_ms: float
    p_compute_ms: float
    transfer_ms: float
    d_queue_ms: float
    d_compute_ms: float
    d_ms_per_token: float

    @property
    def p_d_ms(self) -> float:
        return self.p_queue_ms + self.p_compute_ms + self.transfer_ms

    @property
    def d_local_ms(self) -> float:
        return self.d_queue_ms + self.d_compute_ms


def uncached(turn: Turn) -> int:
    """Tokens of the prompt that D would have to compute."""
    return max(0, turn.prompt - turn.d_cached)


def estimate(turn: Turn, view: View, table: Table | None) -> Costs:
    """For a view that has both P and D; a worker that is missing counts as idle."""
    p, d = view.prefill or WorkerView(""), view.decode or WorkerView("")
    fallback = table.prefill_tokens_per_s if table else _SPEED_TOKENS_PER_S
    p_ms, d_ms = 1e3 / prefill_speed(p, fallback), 1e3 / prefill_speed(d, fallback)
    return Costs(
        p_queue_ms=p.queued_prefill_tokens * p_ms,
        p_compute_ms=max(0, turn.prompt - turn.p_cached) * p_ms,
        transfer_ms=view.handoff_ms + view.on_link_ms(uncached(turn)),
        d_queue_ms=d.queued_prefill_tokens * d_ms,
        d_compute_ms=uncached(turn) * d_ms,
        d_ms_per_token=d_ms,
    )
