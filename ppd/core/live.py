"""Live correction: the queues of now in place of those that the table was measured under.

The table's TTFT holds the queueing that is usual at a cell's rate, and the work of a turn of the cell's
shape. From load reports and from what the turn really needs:

- P->D: the shape's idle TTFT, plus P's queued prefill tokens and the tokens that P lacks beyond the shape's
  (the longer a conversation stayed D-local, the more), at P's prefill speed; and the moving of what D lacks
  beyond the shape's, where the link's speed is known. Nothing is sent before what P still has to send to
  others.
- D-local: likewise with D's queue and the tokens that D lacks. Where D's KV memory is nearly full, part of
  the conversation is taken as evicted. What was measured beyond idle shrinks with D's batch; what it grows
  by is in the queue.
- P->D also waits for D's admission, in the shadow of P's work.
- TPOT starts from D's inter-token latency of now, which holds what local prefills cost already. One more
  holds up every running stream: its tokens, times the batch, over the tokens of an answer, is what it adds to
  the TPOT of all of them together. What one token costs is what D says that it adds to a step: D's own speed;
  without that, what was learned, or the slope of the table.
  All of it is charged to D-local, whose own TPOT does not show what it does to others.
"""

from ppd.core.decision import Turn, View, WorkerView
from ppd.core.names import Route
from ppd.core.score import Expected
from ppd.core.table import Row, Table

STALE_S = 2.0  # eight reports missed
_LEAST_ITL_MS = 0.01  # less is no engine's: not known
_ROOMY = 0.1  # share of D's KV memory that has to be free for a cached conversation to survive


def correct(turn: Turn, view: View, row: Row, table: Table) -> dict[Route, Expected] | None:
    """What each path of `row`, a row of `table`, is expected to cost now.

    None where P's or D's report is missing or stale. The prefill speed of a worker that has not told its own
    is taken from the table.
    """
    p, d = view.prefill, view.decode
    if p is None or d is None or p.age_s > STALE_S or d.age_s > STALE_S:
        return None
    usual = row.baseline
    p_ms = 1e3 / prefill_speed(p, table.prefill_tokens_per_s)  # a token
    d_ms = 1e3 / prefill_speed(d, table.prefill_tokens_per_s)

    survives = min(1.0, max(0.0, 1.0 - d.kv_use) / _ROOMY)
    d_lacks = max(1, turn.prompt - int(turn.d_cached * survives))
    p_lacks = max(1, turn.prompt - turn.p_cached)

    crowding = min(1.0, d.running / usual.running)
    d_wait = d.queued_prefill_tokens * d_ms + usual.d_local_excess_ms * crowding
    p_wait = p.queued_prefill_tokens * p_ms

    moved_ms = view.on_link_ms(max(0, d_lacks - usual.d_tokens))  # of the KV that D lacks beyond the shape's
    computed_ms = _service(usual.p_d_idle_ms, usual.p_tokens, p_lacks, p_ms)
    ttft_p_d = max(max(p_wait + computed_ms, view.on_link_ms(p.unsent_kv_tokens)) + moved_ms, d_wait)
    ttft_d_local = d_wait + _service(usual.d_local_idle_ms, usual.d_tokens, d_lacks, d_ms)

    scale = d.itl_ms / row.p_d.tpot_ms if d.itl_ms >= _LEAST_ITL_MS else 1.0
    pause_ms = _pause_ms(d, table)
    tpot_p_d = row.p_d.tpot_ms * scale
    tpot_d_local = tpot_p_d + pause_ms * d.running * d_lacks / (view.n_out_mean or usual.decoded)

    corrected = {
        Route.P_D: Expected(ttft_p_d, tpot_p_d),
        Route.D_LOCAL: Expected(ttft_d_local, tpot_d_local),
    }
    if row.pullback is not None:
        # P then lacks only what is new. Its measured TTFT keeps the pull, which no queue of ours holds.
        lacks = min(p_lacks, d_lacks)
        service = _service(row.pullback.ttft_ms, usual.d_tokens, lacks, p_ms)
        corrected[Route.P_D_PULLBACK] = Expected(max(p_wait + service, d_wait), row.pullback.tpot_ms * scale)
    return corrected


def _pause_ms(d: WorkerView, table: Table) -> float:
    """How long a locally prefilled token holds up each stream of this D.

    D's own speed is the slope of its steps' times over their prompt tokens, which is just that. What the
    planner learned from inter-token latencies is the same for all D, and lost in noise where few prefill.
    """
    if d.prefill_speed_tokens_per_s > 0:
        return 1e3 / max(d.prefill_speed_tokens_per_s, 1.0)
    return table.interference_ms


def _service(idle_ms: float, usual_tokens: int, tokens: int, ms_per_token: float) -> float:
    """Idle TTFT for other work than the shape's. Never below its share, since the rest is overhead."""
    return max(idle_ms * min(1.0, tokens / usual_tokens), idle_ms + (tokens - usual_tokens) * ms_per_token)


def prefill_speed(worker: WorkerView, fallback: float) -> float:
    """Prefill speed in tokens a second. Throughput is a lower bound of it: an idle engine's is low."""
    return max(worker.prefill_speed_tokens_per_s or fallback, worker.prefill_tokens_per_s, 1.0)
