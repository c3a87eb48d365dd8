"""The life of every request: judge, admit, serve within its deadline, answer, record."""

import asyncio
import logging
from collections.abc import Callable

from opentelemetry.trace import Tracer

from controlplane.admission.entry import Entry, traced, unguarded
from controlplane.admission.gate import Gate
from controlplane.dialects.endpoints import Target, find, shape_of
from controlplane.engines.cluster import Cluster
from controlplane.errors import STOPPING, TOO_LONG, ApiError
from controlplane.http.asgi import Asgi
from controlplane.http.exchange import Exchange
from controlplane.telemetry.spans import Spans
from controlplane.turn.handler import TurnHandler
from controlplane.turn.ledger import Ledger
from controlplane.turn.state import RequestState


class Lifecycle:
    """Serves exchanges: what `find` knows on engines, all else by `surface`."""

    def __init__(
        self,
        entry: Entry,
        turns: TurnHandler,
        surface: Asgi,
        cluster: Cluster,
        gate: Gate,
        ledger: Ledger,
        turn_s: float,
        tracer: Tracer | None,
        logger: logging.Logger,
    ) -> None:
        self._entry = entry
        self._turns = turns
        self._surface = surface
        self._cluster = cluster
        self._gate = gate
        self._ledger = ledger
        self._turn_s = turn_s
        self.tracer = tracer
        self._log = logger
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    def judge(self, exchange: Exchange) -> ApiError | None:
        """Refuse on the head alone what can be refused without the body."""
        error = self._entry.judge(exchange)
        if error is not None:
            return error
        request = exchange.request
        exchange.visit.target = find(request.method, request.path, request.query)
        if exchange.visit.target is None:
            return self._surface.judge(exchange)
        if request.headers.get(b"content-encoding", b"identity") != b"identity":
            return ApiError(415, "compressed request bodies are not supported")
        return None

    def lost(self, exchange: Exchange) -> None:
        """The client hung up while it sent its request."""
        self._entry.log(exchange)

    async def __call__(self, exchange: Exchange) -> None:
        if self._entry.preflight(exchange):
            self._entry.log(exchange)
            return
        target: Target | None = exchange.visit.target
        state = RequestState(exchange, target, self._spans(exchange, target), self._clock())
        key = None
        try:
            if exchange.request.refusal is not None:
                raise exchange.request.refusal
            key = self._entry.enter(exchange)
            if target is None:
                await self._surface(exchange)
                state.status = exchange.response.status or 499
            else:
                await self._relay(state, target)
        except ApiError as error:
            self._fail(state, error)
        except asyncio.CancelledError:
            if exchange.give_up():
                self._fail(state, ApiError(504, TOO_LONG))
            elif exchange.gone:
                state.cancelled()
            else:
                self._fail(state, ApiError(503, STOPPING, retry_after_s=1), "shutdown")
                raise
        except Exception:
            request = exchange.request
            self._log.exception("%s %s: %s", request.method, request.path[:200], state.request_id)
            self._fail(state, ApiError(500, "internal error"))
        finally:
            exchange.unwatch()
            self._entry.leave(key)
            if target is not None:
                self._ledger.close(state, self._clock())
            else:
                state.spans.end(state.status, state.error_type, {})
            self._entry.log(exchange)

    def _spans(self, exchange: Exchange, target: Target | None) -> Spans:
        """Every request has a server span but those of health checks, scrapes and operators' pages."""
        request = exchange.request
        if target is None and unguarded(request.path):
            return Spans(None, request.headers, "")
        name = request.method if target is None else f"{request.method} {target.endpoint.path}"
        visit = exchange.visit
        ids = {"ppd.request_id": visit.request_id, "ppd.client_request_id": visit.client_id}
        spans = Spans(self.tracer, request.headers, name, ids)
        if trace_id := spans.trace_id:
            traced(exchange, trace_id)
        return spans

    async def _relay(self, state: RequestState, target: Target) -> None:
        """Parse the request, wait for a place, and have engines answer it before the deadline."""
        request = self._turns.read(state, target)
        if request.model:
            self._cluster.check(request.model)
            request.base = self._cluster.base(request.model)
        state.client.watch(state.started_s + self._turn_s)
        await self._admit(state)
        try:
            await self._turns.serve(state, target)
        finally:
            self._gate.leave()

    async def _admit(self, state: RequestState) -> None:
        """Wait for a place; the caller must call `leave` afterwards. Raises ApiError (429)."""
        state.queued_s = 0.0
        if self._gate.admit():
            return
        begin_s = self._clock()
        try:
            await self._gate.wait()
        finally:
            state.queued_s = self._clock() - begin_s

    @staticmethod
    def _fail(state: RequestState, error: ApiError, error_type: str = "") -> None:
        state.failed(error, error_type)
        state.client.response.fail(error, state.headers(), shape_of(state.client.request.path))
