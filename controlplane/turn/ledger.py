"""The end of a turn: session, metrics, record, span."""

import time
from typing import Any

from msgspec import UNSET

from controlplane.engines.cluster import Cluster
from controlplane.engines.transfers import Transfers
from controlplane.shared.siblings import Siblings
from controlplane.telemetry import metrics
from controlplane.telemetry.counts import counter, distribution
from controlplane.telemetry.recorder import Recorder
from controlplane.turn.conversations import History
from controlplane.turn.counted import counted
from controlplane.turn.features import FeatureReader
from controlplane.turn.state import RequestState, TurnState
from ppd.core.learning.samples import survived
from ppd.core.names import Outcome, Reason, Route
from ppd.core.records import TurnRecord

NONE = "none"  # as path and reason of what was not placed


class Ledger:
    """Closes turns."""

    def __init__(
        self,
        cluster: Cluster,
        features: FeatureReader,
        history: History,
        transfers: Transfers,
        recorder: Recorder,
        siblings: Siblings,
        policy: str,
    ) -> None:
        self._transfers = transfers
        self._cluster = cluster
        self._features = features
        self._history = history
        self._recorder = recorder
        self._policy = policy
        self._siblings = siblings
        self.recent = siblings.own

    def _unplaced(self, state: RequestState) -> None:
        """The end of a request that no engine was chosen for."""
        if state.status != 200:
            counter(metrics.REQUESTS, NONE, NONE, str(state.status)).add()
        if state.queued_s is not None:
            distribution(metrics.QUEUE, NONE).observe(state.queued_s)
        if state.outcome is Outcome.CANCELLED:
            counter(metrics.CANCELLED, state.stage).add()
        state.spans.end(state.status, state.error_type, {"ppd.outcome": state.outcome.value})

    def close(self, state: RequestState, now_s: float) -> None:
        """Count, record and trace a request that has ended."""
        if state.turn is None:
            self._unplaced(state)
        else:
            self._close(state.turn, now_s)

    def _close(self, turn: TurnState, now_s: float) -> None:
        self._history.finish(turn, now_s)
        self._learn(turn)
        record = self._record(turn, now_s)
        if turn.handed_off:
            if moved := self._transfers.moved_by(turn.request_id):
                record.kv_bytes, record.kv_transfer_ms = moved.bytes, moved.seconds * 1e3
                for direction in moved.needless:
                    turn.spans.needless_transfer(direction)
            self._transfers.closed(record)
        self._count(turn, record)
        self._siblings.add(record)
        self._recorder.add(record)
        attributes = _attributes(turn, record) if turn.spans.recording else {}
        turn.spans.end(turn.status, turn.arrival.error_type, attributes)

    def _learn(self, turn: TurnState) -> None:
        usage = turn.usage
        if usage is None or turn.outcome is not Outcome.OK or not turn.request.dialect.generates:
            return
        self._features.outputs.observe(turn.request.model, usage.completion_tokens or 0)
        self._features.tokens.learn(turn.request.base, turn.request.size, usage.prompt_tokens)

    def _record(self, turn: TurnState, now_s: float) -> TurnRecord:
        asked = turn.request.model
        model = turn.request.base or turn.plan.decode.record.model
        record = TurnRecord(
            request_id=turn.request_id,
            client_request_id=turn.arrival.client_request_id,
            endpoint=turn.client.request.path,
            ended_unix_s=time.time(),
            model=model,
            asked_model="" if asked == model else asked,
            placement=self._cluster.placement(model),
            path=turn.path,
            reason=turn.reason,
            outcome=turn.outcome,
            error_type=turn.arrival.error_type,
            status=turn.status,
            streamed=turn.request.stream,
            trace_id=turn.spans.trace_id,
            session_id=turn.session.id if turn.session else "",
            slo_class=turn.slo,
            policy=self._policy,
            queue_ms=turn.queued_s * 1e3,
            prefill_ms=turn.prefill_s * 1e3,
            e2e_ms=(now_s - turn.started_s) * 1e3,
            retries=turn.retries,
            migrations=turn.migrations,
        )
        self._add_plan(turn, record)
        self._add_times(turn, record)
        return record

    def _judge(self, turn: TurnState, cached_tokens: int) -> bool | None:
        """Whether D still held the conversation."""
        plan, match = turn.plan, turn.conversation.match
        if turn.outcome is not Outcome.OK or not plan.cached or turn.handed_off:
            return None
        if turn.retries or turn.migrations:
            return None
        block = plan.decode.record.block_size_tokens
        return self._features.judged(turn.request.base, match, cached_tokens, block).kept

    def _add_times(self, turn: TurnState, record: TurnRecord) -> None:
        """Token counts, and times as far as they were seen."""
        made = counted(turn)
        record.n_prompt_tokens, record.n_prompt_estimated = made.prompt, made.prompt_estimated
        record.n_out_tokens, record.n_out_at_least = made.out, made.out_at_least
        record.cached_tokens_prefill = turn.prefill_cached
        if turn.usage is not None and not turn.handed_off:
            record.cached_tokens_decode = turn.usage.cached_tokens
        record.kept = self._judge(turn, record.cached_tokens_decode)
        if not turn.first_s:
            return
        record.ttft_ms = (turn.first_s - turn.started_s) * 1e3
        record.path_ttft_ms = (turn.first_s - turn.placed_s) * 1e3
        n_out = record.n_out_tokens
        if n_out is not UNSET and n_out > 1 and not record.n_out_at_least and not turn.lagged:
            record.tpot_ms = (turn.last_s - turn.first_s) * 1e3 / (n_out - 1)

    def _add_plan(self, turn: TurnState, record: TurnRecord) -> None:
        plan, features = turn.plan, turn.conversation.turn
        record.turn = features.turn
        record.n_in_tokens = features.n_in
        record.n_ctx_tokens = features.n_ctx
        record.n_out_predicted_tokens = features.n_out
        record.expected_cached_tokens = features.d_cached if plan.cached else 0
        record.p_missing_tokens = features.n_ctx - plan.p_cached_tokens
        record.local_streak = features.local_streak
        record.idle_s = features.idle_s
        record.qps = features.qps
        record.table_version = plan.decision.table_version
        record.cell = plan.decision.cell
        record.score = plan.decision.score
        record.decode_worker = plan.decode.name
        record.prefill_worker = turn.prefill_worker.name if turn.prefill_worker else ""
        record.explored = plan.decision.reason is Reason.EXPLORE
        if plan.seen is not None:
            record.decode_running = plan.seen.running
            record.decode_kv_use = plan.seen.kv_use
        record.prefill_queued_tokens = plan.prefill_queued_tokens

    def _count(self, turn: TurnState, record: TurnRecord) -> None:
        if record.outcome is Outcome.CANCELLED:
            counter(metrics.CANCELLED, turn.arrival.stage).add()
        path = record.path.value
        counter(metrics.REQUESTS, path, record.reason.value, str(record.status)).add()
        distribution(metrics.E2E, path).observe(record.e2e_ms / 1e3)
        distribution(metrics.QUEUE, path).observe(turn.queued_s)
        if not turn.request.dialect.generates:
            return
        for metric, value_ms in (
            (metrics.TTFT, record.ttft_ms),
            (metrics.PATH_TTFT, record.path_ttft_ms),
            (metrics.TPOT, record.tpot_ms),
        ):
            if value_ms is not UNSET:
                distribution(metric, path).observe(value_ms / 1e3)
        if turn.prefill_s:
            distribution(metrics.PREFILL).observe(turn.prefill_s)
        if turn.request.dialect.generates:
            counter(metrics.TOKENS, "prompt").add(record.n_prompt_tokens or 0)
            counter(metrics.TOKENS, "cached").add(_cached(record) or 0)
            counter(metrics.TOKENS, "output").add(record.n_out_tokens or 0)
        if record.path is Route.D_LOCAL and (kept := survived(record)) is not None:
            counter(metrics.CACHE, "held" if kept else "lost").add()
            saved = record.cached_tokens_decode * turn.plan.decode.record.kv_bytes_per_token
            counter(metrics.KV_BYTES, "saved").add(saved)


def _cached(record: TurnRecord) -> int | None:
    """Tokens of the prompt that were cached before the turn; None = not known."""
    found = max(record.cached_tokens_decode, record.cached_tokens_prefill)
    return None if found < 0 else found


def _attributes(turn: TurnState, record: TurnRecord) -> dict[str, Any]:
    """What a turn can be searched by; the GenAI names are OpenTelemetry's. What is not known is left out."""
    found = {
        "gen_ai.operation.name": turn.request.dialect.operation,
        "gen_ai.provider.name": "ppd",
        "gen_ai.request.model": record.asked_model or record.model,
        "gen_ai.conversation.id": record.session_id or None,
        "gen_ai.usage.input_tokens": record.n_prompt_tokens,
        "gen_ai.usage.output_tokens": record.n_out_tokens,
        "ppd.request_id": record.request_id,
        "ppd.path": record.path.value,
        "ppd.reason": record.reason.value,
        "ppd.session": record.session_id or None,
        "ppd.turn": record.turn,
        "ppd.slo_class": record.slo_class,
        "ppd.table_version": record.table_version,
        "ppd.cell": record.cell,
        "ppd.prefill_worker": record.prefill_worker,
        "ppd.decode_worker": record.decode_worker,
        "ppd.outcome": record.outcome.value,
        "ppd.streamed": record.streamed,
        "ppd.input_tokens_estimated": record.n_prompt_estimated or None,
        "ppd.output_tokens_at_least": record.n_out_at_least or None,
        "ppd.cached_tokens": _cached(record),
        "ppd.kv_bytes": record.kv_bytes,
        "ppd.queue_ms": record.queue_ms,
        "ppd.ttft_ms": record.ttft_ms,
        "ppd.path_ttft_ms": record.path_ttft_ms,
        "ppd.tpot_ms": record.tpot_ms,
        "ppd.retries": record.retries,
        "ppd.migrations": record.migrations,
    }
    return {name: value for name, value in found.items() if value is not None and value is not UNSET}
