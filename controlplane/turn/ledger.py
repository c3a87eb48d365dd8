"""The end of a turn: session, metrics, record, span."""

import time
from typing import Any

from controlplane.engines.cluster import Cluster
from controlplane.engines.transfers import Transfers
from controlplane.shared.siblings import Siblings
from controlplane.telemetry import metrics
from controlplane.telemetry.counts import counter, distribution
from controlplane.telemetry.recorder import Recorder
from controlplane.turn.conversations import History
from controlplane.turn.features import FeatureReader
from controlplane.turn.state import RequestState, TurnState
from ppd.core.names import Outcome, Reason, Route
from ppd.core.records import TurnRecord


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
            counter(metrics.REQUESTS, "none", "none", str(state.status)).add()
        if state.outcome is Outcome.CANCELLED:
            counter(metrics.CANCELLED, "waiting").add()
        state.spans.end(state.status, state.error_type, {"ppd.outcome": state.outcome.value})

    def served_whole(self, path: Route, queued_s: float, seconds: float) -> None:
        """A request that one engine answered and that teaches nothing; how long it waited and took."""
        counter(metrics.REQUESTS, path.value, Reason.ONE_ENGINE.value, "200").add()
        distribution(metrics.QUEUE, path.value).observe(queued_s)
        distribution(metrics.E2E, path.value).observe(seconds)

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
        if usage is None or turn.outcome is not Outcome.OK:
            return
        self._features.outputs.observe(turn.request.model, usage.completion_tokens or 0)
        self._features.tokens.learn(turn.request.model, turn.request.size_bytes, usage.prompt_tokens)

    def _record(self, turn: TurnState, now_s: float) -> TurnRecord:
        record = TurnRecord(
            request_id=turn.request_id,
            ended_unix_s=time.time(),
            model=turn.request.model,
            placement=self._cluster.placement(turn.request.model),
            path=turn.path,
            reason=turn.reason,
            outcome=turn.outcome,
            status=turn.status,
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
        usage = turn.usage
        if usage is not None:
            record.n_prompt_tokens = usage.prompt_tokens
            record.n_out_tokens = usage.completion_tokens or 0
            record.cached_tokens_prefill = turn.prefill_cached
            record.cached_tokens_decode = -1 if turn.handed_off else usage.cached_tokens
        if turn.first_s:
            record.ttft_ms = (turn.first_s - turn.started_s) * 1e3
            if record.n_out_tokens > 1 and turn.request.stream:
                record.tpot_ms = (turn.last_s - turn.first_s) * 1e3 / (record.n_out_tokens - 1)
        return record

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
        path = record.path
        counter(metrics.REQUESTS, path, record.reason, str(record.status)).add()
        distribution(metrics.E2E, path).observe(record.e2e_ms / 1e3)
        distribution(metrics.QUEUE, path).observe(turn.queued_s)
        if record.ttft_ms:
            distribution(metrics.TTFT, path).observe(record.ttft_ms / 1e3)
        if record.tpot_ms:
            distribution(metrics.TPOT, path).observe(record.tpot_ms / 1e3)
        if turn.prefill_s:
            distribution(metrics.PREFILL).observe(turn.prefill_s)
        if record.outcome is Outcome.CANCELLED:
            counter(metrics.CANCELLED, "streaming" if turn.first_s else "waiting").add()
        cached = max(record.cached_tokens_decode, record.cached_tokens_prefill, 0)
        counter(metrics.TOKENS, "prompt").add(record.n_prompt_tokens)
        counter(metrics.TOKENS, "cached").add(cached)
        counter(metrics.TOKENS, "output").add(record.n_out_tokens)
        if (
            record.path is Route.D_LOCAL
            and record.expected_cached_tokens
            and record.cached_tokens_decode >= 0
        ):
            held = record.cached_tokens_decode >= record.expected_cached_tokens // 2
            counter(metrics.CACHE, "held" if held else "lost").add()
            saved = record.cached_tokens_decode * turn.plan.decode.record.kv_bytes_per_token
            counter(metrics.KV_BYTES, "saved").add(saved)


def _attributes(turn: TurnState, record: TurnRecord) -> dict[str, Any]:
    """What a turn can be searched by; the GenAI names are OpenTelemetry's."""
    return {
        "gen_ai.operation.name": "chat" if turn.request.chat else "text_completion",
        "gen_ai.provider.name": "ppd",
        "gen_ai.request.model": record.model,
        "gen_ai.conversation.id": record.session_id,
        "gen_ai.usage.input_tokens": record.n_prompt_tokens,
        "gen_ai.usage.output_tokens": record.n_out_tokens,
        "ppd.request_id": record.request_id,
        "ppd.path": record.path.value,
        "ppd.reason": record.reason.value,
        "ppd.session": record.session_id,
        "ppd.turn": record.turn,
        "ppd.slo_class": record.slo_class,
        "ppd.table_version": record.table_version,
        "ppd.cell": record.cell,
        "ppd.prefill_worker": record.prefill_worker,
        "ppd.decode_worker": record.decode_worker,
        "ppd.outcome": record.outcome.value,
        "ppd.cached_tokens": max(record.cached_tokens_decode, record.cached_tokens_prefill),
        "ppd.kv_bytes": record.kv_bytes,
        "ppd.ttft_ms": record.ttft_ms,
        "ppd.retries": record.retries,
        "ppd.migrations": record.migrations,
    }
