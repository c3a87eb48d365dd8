"""A request while it is served: `RequestState` from its arrival on, `TurnState` once engines were chosen.

A request that was refused or given up before it was placed has no `TurnState`, so that it cannot be counted
or recorded as a turn of any path.
"""

from typing import Any

from opentelemetry.trace import Span

from controlplane.dialects.base import Prefilled, Request, Seen, Usage, Watch
from controlplane.dialects.endpoints import Target
from controlplane.engines.worker import Worker
from controlplane.errors import ApiError
from controlplane.http.exchange import Exchange
from controlplane.http.http_request import Headers
from controlplane.telemetry.spans import Spans
from controlplane.turn.features import Conversation
from controlplane.turn.route import WorkerPlan
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


class RequestState:
    """One request, and how it ended."""

    request: Request  # once it is parsed

    def __init__(self, client: Exchange, target: Target | None, spans: Spans, started_s: float) -> None:
        """`target`: None where no engine serves it."""
        self.client = client
        self.target = target
        self.spans = spans
        self.request_id: str = client.visit.request_id
        self.client_request_id: str = client.visit.client_id
        self.started_s = started_s
        self.queued_s: float | None = None  # None: it was refused before it could queue
        self.slo = ""
        self.force: Route | None = None
        self.turn: TurnState | None = None  # once it is placed
        self.outcome = Outcome.OK
        self.status = 200
        self.error_type = ""  # a bounded label

    def failed(self, error: ApiError, error_type: str = "") -> None:
        self.outcome, self.status = Outcome.ERROR, error.status
        self.error_type = error_type or error.kind

    def cancelled(self) -> None:
        """The client hung up."""
        self.outcome, self.status, self.error_type = Outcome.CANCELLED, 499, "client_disconnected"
        self.spans.event("cancelled", {"ppd.stage": self.stage})

    @property
    def stage(self) -> str:
        """How far the request came: `queued` until it is placed, `waiting` until its answer begins, then
        `streaming`.
        """
        if self.turn is None:
            return "queued"
        return "streaming" if self.turn.answered else "waiting"

    def headers(self) -> Headers:
        """Answer headers that say how the request was routed; none before it is placed."""
        return self.turn.headers() if self.turn is not None else []


class TurnState:
    """A request with its engines. Filled step by step; the ledger reads it at the end."""

    def __init__(
        self,
        arrival: RequestState,
        target: Target,
        conversation: Conversation,
        plan: WorkerPlan,
        placed_s: float,
    ) -> None:
        self.target = target
        self.arrival = arrival
        self.placed_s = placed_s
        self.client = arrival.client
        self.spans = arrival.spans
        self.request_id = arrival.request_id
        self.started_s = arrival.started_s
        self.queued_s = arrival.queued_s or 0.0
        self.slo = arrival.slo
        self.asked = arrival.request  # as the client asked
        self.request = arrival.request  # as engines are asked now: of a stream that moved, its continuation
        self.conversation = conversation
        self.session: Session | None = conversation.session  # the one that this turn belongs to, new or known
        self.plan = plan
        self.path = plan.path
        self.reason = plan.reason
        self.moved: Reason | None = None
        self.watch: Watch | None = None  # once a stream has begun
        self.migrations = 0
        self.prefill_worker: Worker | None = None
        self.prefill_s = 0.0
        self.prefill_cached = -1
        self.prefill_prompt = 0  # prompt tokens as P counted them; 0 = no P did
        self.handed_off = False
        self.hold = False  # D was asked to hold its KV for a pull-back
        self.retries = 0
        self.crashes = 0  # engines in a row that died without a new token of its answer
        self.sent_chars = 0  # characters sent when its stream last broke
        self.answered = False  # a part of the answer was sent
        self.first_s = 0.0  # its first token; 0 = not seen, as in an answer that is not streamed
        self.last_s = 0.0  # its last token, likewise
        self.lagged = False  # the client read its stream too slowly
        self.answer: Seen | None = None

    def engine_headers(self, span: Span, leg: str = "") -> bytes:
        """Header lines for an engine: the id of this leg, and the trace that its spans belong to."""
        again = f"-{self.retries}" if self.retries else ""
        own, given = self.request_id, self.arrival.client_request_id
        name = f"{given}-{own}" if given else own  # a client's id alone would not be unique
        return f"x-request-id: {name}{leg}{again}\r\n{self.spans.headers(span)}".encode()

    # --- what happens, in order ---

    def place(self, plan: WorkerPlan) -> None:
        """Move the turn to other engines."""
        self.plan = plan
        self.prefill_worker, self.prefill_cached, self.handed_off = None, -1, False
        if self.watch is not None:  # the head, with path and reason, is sent
            return
        self.path = plan.path
        self.reason = self.moved or plan.reason

    def migrate(self, continuation: Request) -> None:
        """Continue the stream on another engine."""
        self.request = continuation
        self.migrations += 1

    def use_pullback(self) -> dict[str, Any] | None:
        """D's parameters for a pull-back. They work once: a second try of the hop goes without them."""
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
        if self.watch is None:  # a continuation's prompt holds what was sent already
            self.prefill_prompt = answer.prompt_tokens
        self.handed_off = answer.kv is not None

    def prefill_failed(self) -> None:
        self.prefill_worker = None
        if self.watch is None:
            self.path, self.reason = Route.D_LOCAL, Reason.PREFILL_FAILED

    def answered_by_prefill(self) -> None:
        if self.watch is None:
            self.reason = Reason.PREFILL_ANSWERED

    def first_token(self, now_s: float) -> None:
        self.answered, self.first_s = True, now_s
        self.spans.event("first_token")

    def seen(self, answer: Seen, now_s: float) -> None:
        """Note the facts of a stream that ended or broke."""
        self.answer = answer
        self.last_s = now_s

    def seen_whole(self, answer: Seen, now_s: float) -> None:
        """Note the facts of an answer that was not streamed. When its first token came is known only if it
        has a single token.
        """
        self.answered, self.answer = True, answer
        if answer.usage is not None and answer.usage.completion_tokens == 1:
            self.first_token(now_s)
            self.last_s = now_s

    # --- what is reported ---

    @property
    def outcome(self) -> Outcome:
        return self.arrival.outcome

    @property
    def status(self) -> int:
        return self.arrival.status

    @property
    def reported_cached(self) -> int | None:
        """The cached tokens that usage reports to the client: P's figure after a hand-off, since D counts
        what it pulled as cached; None: D's own figure.
        """
        return self.prefill_cached if self.handed_off else None

    @property
    def usage(self) -> Usage | None:
        return self.answer.usage if self.answer else None

    @property
    def decode_worker(self) -> Worker | None:
        return None if self.reason is Reason.PREFILL_ANSWERED else self.plan.decode

    def headers(self) -> Headers:
        """The answer headers; no addresses, only names."""
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
