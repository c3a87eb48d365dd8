"""One turn while it is served: what was decided, and what was seen."""

from typing import Any

from opentelemetry.trace import Span

from controlplane.engines.worker import Worker
from controlplane.http.exchange import Exchange, Headers
from controlplane.telemetry.spans import Spans
from controlplane.turn.features import Conversation
from controlplane.turn.handoff import Prefilled, Usage
from controlplane.turn.parse import Request
from controlplane.turn.route import Plan
from controlplane.turn.stream import Seen, StreamWatch
from ppd.core.names import (
    H_DECODE,
    H_PREFILL,
    H_REASON,
    H_ROUTE,
    Outcome,
    Reason,
    Route,
)
from ppd.core.sessions import Session

_ROUTE = H_ROUTE.encode()
_REASON = H_REASON.encode()
_PREFILL = H_PREFILL.encode()
_DECODE = H_DECODE.encode()


class TurnState:
    """Filled step by step; the ledger reads it at the end."""

    def __init__(
        self,
        request: Request,
        client: Exchange,
        spans: Spans,
        request_id: str,
        started_s: float,
        force: Route | None,
    ) -> None:
        self.asked = request  # as the client asked
        self.request = request  # as engines are asked now: of a stream that moved, its continuation
        self.watch: StreamWatch | None = None  # once a stream has begun
        self.migrations = 0
        self.client = client
        self.spans = spans
        self.request_id = request_id
        self.started_s = started_s
        self.force = force
        self.slo = ""
        self.queued_s = 0.0
        self.placed = False  # once true, `conversation` and `plan` are there
        self.conversation: Conversation
        self.plan: Plan
        self.session: Session | None = None  # the one that this turn belongs to, new or known
        self.moved: Reason | None = None
        self.path = Route.P_D
        self.reason = Reason.FIRST_TURN
        self.prefill_worker: Worker | None = None
        self.prefill_s = 0.0
        self.prefill_cached = -1
        self.handed_off = False
        self.hold = False  # D was asked to hold its KV for a pull-back
        self.engine_path = client.path.encode()
        self.retries = 0
        self.first_s = 0.0
        self.last_s = 0.0
        self.answer: Seen | None = None
        self.outcome = Outcome.OK
        self.status = 200

    def engine_headers(self, span: Span, leg: str = "") -> bytes:
        """Header lines for an engine: the id of this leg, and the trace that its spans belong to."""
        again = f"-{self.retries}" if self.retries else ""
        lines = f"x-request-id: {self.request_id}{leg}{again}\r\n"
        if parent := self.spans.parent_of(span):
            lines += f"traceparent: {parent}\r\n"
        return lines.encode()

    # --- what happens, in order ---

    def place(self, plan: Plan) -> None:
        self.plan = plan
        self.placed = True
        self.prefill_worker, self.prefill_cached, self.handed_off = None, -1, False
        if self.watch is not None:  # the head, with path and reason, is sent
            return
        self.path = plan.path
        self.reason = self.moved or plan.reason

    def migrate(self, continuation: Request) -> None:
        """The stream goes on elsewhere."""
        self.request = continuation
        self.migrations += 1

    def use_pullback(self) -> dict[str, Any] | None:
        """D's parameters, once: a second try of the hop goes without them."""
        held = self.plan.pullback
        session = self.conversation.session
        if held is None or session is None or session.pullback is not held:
            if self.path is Route.P_D_PULLBACK:
                self.path = Route.P_D
            return None
        session.pullback = None
        return held.params

    def prefilled(self, answer: Prefilled, seconds: float) -> None:
        self.prefill_s = seconds
        self.prefill_cached = answer.cached_tokens
        self.handed_off = answer.kv is not None

    def prefill_failed(self) -> None:
        self.prefill_worker = None
        if self.watch is None:
            self.path, self.reason = Route.D_LOCAL, Reason.PREFILL_FAILED

    def answered_by_prefill(self) -> None:
        if self.watch is None:
            self.reason = Reason.PREFILL_ANSWERED

    def first_token(self, now_s: float) -> None:
        self.first_s = now_s
        self.spans.event("first_token")

    def seen(self, answer: Seen, now_s: float) -> None:
        self.answer = answer
        self.last_s = now_s

    def failed(self, status: int) -> None:
        self.outcome, self.status = Outcome.ERROR, status

    def cancelled(self) -> None:
        self.outcome, self.status = Outcome.CANCELLED, 499
        self.spans.event("cancelled", {"ppd.stage": "streaming" if self.first_s else "waiting"})

    # --- what is told ---

    @property
    def reported_cached(self) -> int | None:
        """What usage says was cached before the turn: P's figure after a hand-off, since D counts what it
        pulled; None = D's own figure."""
        return self.prefill_cached if self.handed_off else None

    @property
    def usage(self) -> Usage | None:
        return self.answer.usage if self.answer else None

    @property
    def decode_worker(self) -> Worker | None:
        if not self.placed or self.reason is Reason.PREFILL_ANSWERED:
            return None
        return self.plan.decode

    def headers(self) -> Headers:
        """The answer headers; no addresses, only names."""
        if not self.placed:
            return []
        headers = [(_ROUTE, self.path.encode()), (_REASON, self.reason.encode())]
        if self.prefill_worker is not None:
            headers.append((_PREFILL, self.prefill_worker.told))
        if (decode := self.decode_worker) is not None:
            headers.append((_DECODE, decode.told))
        return headers

    def route_attributes(self) -> dict[str, Any]:
        turn, decision = self.conversation.turn, self.plan.decision
        return {
            "ppd.path": self.path.value,
            "ppd.reason": self.reason.value,
            "ppd.turn": turn.turn,
            "ppd.n_ctx": turn.n_ctx,
            "ppd.n_in": turn.n_in,
            "ppd.n_out_predicted": turn.n_out,
            "ppd.qps": turn.qps,
            "ppd.cell": decision.cell,
            "ppd.table_version": decision.table_version,
            "ppd.score": decision.score,
            "ppd.slo_class": self.slo,
            "ppd.prefill_worker": self.plan.prefill.name if self.plan.prefill else "",
            "ppd.decode_worker": self.plan.decode.name,
        }
