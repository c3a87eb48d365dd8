"""Runs a turn's legs: the hop through P, and D's answer on its way to the client."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from opentelemetry.trace import Span

from controlplane import errors
from controlplane.dialects.base import Prefilled, Seen
from controlplane.engines.connection import Connection, UpstreamError
from controlplane.engines.transfers import Transfers
from controlplane.engines.worker import Reservation, Worker
from controlplane.http.http_request import Headers
from controlplane.settings import FrontendSettings
from controlplane.telemetry import metrics
from controlplane.turn import handoff
from controlplane.turn.leg import MAX_CRASHES, QUEUE, EngineFailedError, Engines, StreamBrokenError
from controlplane.turn.route import Router, WorkerPlan
from controlplane.turn.state import TurnState
from controlplane.turn.stored import StoredResponses
from ppd.core import names

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON_HEADERS: Headers = [(b"content-type", b"application/json")]


class Legs:
    """Carries out a turn's plan."""

    def __init__(
        self,
        settings: FrontendSettings,
        router: Router,
        engines: Engines,
        stored: StoredResponses,
        transfers: Transfers,
        logger: logging.Logger,
    ) -> None:
        self._stored = stored
        self._transfers = transfers
        self._settings = settings
        self._router = router
        self._engines = engines
        self._log = logger
        self._loop = asyncio.get_running_loop()

    async def run(self, turn: TurnState, plan: WorkerPlan) -> None:
        """Both legs. Raises EngineFailedError while another D may still take the turn."""
        features = turn.conversation.turn
        lacks = max(0, features.prompt - (features.d_cached if plan.cached else 0))
        compute, read = (0, lacks) if plan.prefill else (lacks, 0)
        with Reservation(plan.decode, compute, plan.prefill, read) as reservation:
            prefilled = await self._prefill(turn, plan) if plan.prefill else None
            if prefilled is not None and prefilled.finished:
                await self._answer_of_prefill(turn, prefilled)
                return
            with turn.spans.leg(names.SPAN_DECODE, {"ppd.worker": plan.decode.name}) as span:
                try:
                    await self._decode(turn, plan.decode, prefilled, reservation, span)
                except asyncio.CancelledError:
                    self._transfers.called_off(turn.request_id)
                    if turn.handed_off and not turn.answered and turn.prefill_worker is not None:
                        # D may have read what P holds for it, or may never have been asked.
                        self._engines.unwanted(turn.prefill_worker, turn.request_id)
                    raise

    async def _decode(
        self,
        turn: TurnState,
        worker: Worker,
        prefilled: Prefilled | None,
        reservation: Reservation,
        span: Span,
    ) -> None:
        connection = await self._ask_decode(turn, worker, prefilled, span)
        try:
            if turn.request.stream:
                await self._relay_stream(turn, worker, connection, reservation)
            else:
                await self._relay_whole(turn, worker, connection)
        finally:
            connection.close()

    async def _prefill(self, turn: TurnState, plan: WorkerPlan) -> Prefilled | None:
        """The hop through P, or through another P; None where none succeeded and D computes the whole
        prompt.
        """
        tried: frozenset[str] = frozenset()
        worker: Worker | None = plan.prefill
        begin_s = self._loop.time()
        while worker is not None:
            cached = plan.p_cached_tokens if worker is plan.prefill else 0
            with (
                turn.spans.leg(names.SPAN_PREFILL, {"ppd.worker": worker.name}) as span,
                Reservation(worker, max(0, turn.conversation.turn.prompt - cached)),
            ):
                turn.prefill_worker = worker
                held = turn.use_pullback()
                parent = turn.spans.parent_of(span)
                body = handoff.prefill_body(turn.request, held, parent, turn.request_id)
                try:
                    prefilled = await self._engines.prefill(
                        worker,
                        turn.target.engine_path,
                        turn.engine_headers(span, "-p"),
                        body,
                        turn.request_id,
                        turn.request.generating,
                        self._router.patience(plan, worker, turn.conversation.turn, self._loop.time()),
                    )
                except EngineFailedError as error:
                    span.set_attribute("ppd.error", str(error))
                    metrics.RETRIES.labels("prefill", error.kind).inc()
                    turn.retries += 1
                    turn.crashes += error.crashed
                    # P makes steps but D would finish sooner; or P's keep dying, and a D should try.
                    if error.kind == QUEUE or turn.crashes >= MAX_CRASHES - 1:
                        break
                    tried |= {worker.id}
                    worker = self._router.another_prefill(plan, turn.request, self._loop.time(), tried)
                    continue
                turn.prefilled(prefilled, self._loop.time() - begin_s)
                if prefilled.kv is None and not prefilled.finished:
                    metrics.NO_KV.inc()
                    span.add_event("no KV parameters came back")
                    self._log.warning("%s gave no KV parameters; D computes the prompt again", worker.name)
                return prefilled
        turn.prefill_failed()
        return None

    async def _ask_decode(
        self, turn: TurnState, worker: Worker, prefilled: Prefilled | None, span: Span
    ) -> Connection:
        kv = prefilled.kv if prefilled else None
        if kv is not None:
            self._transfers.expect(turn.request_id, worker.id)
        hold = self._settings.pullback and worker.record.bidirectional and turn.request.dialect.generates
        turn.hold = hold
        method = turn.target.endpoint.method.encode()
        body = (
            handoff.decode_body(turn.request, kv, turn.spans.parent_of(span), turn.request_id, hold)
            if method == b"POST"
            else b""
        )
        try:
            return await self._engines.send(
                worker,
                turn.target.engine_path,
                turn.engine_headers(span),
                body,
                # An answer that is not streamed comes all at once: only the turn's own deadline applies.
                self._settings.first_byte_s if turn.request.stream else self._settings.turn_s,
                turn.request.dialect,
                method,
                self._kv_may_come(turn, worker) if kv is not None and turn.request.stream else None,
            )
        except EngineFailedError as error:
            if prefilled is not None and error.kind in ("refused", "connect-timeout"):
                other = self._router.another_decode(turn.request.model, worker, self._loop.time())
                if other is not None:
                    self._engines.release(other, prefilled)
            raise

    def _kv_may_come(self, turn: TurnState, worker: Worker) -> Callable[[float], bool]:
        """The rule for a stream that is late at a D which makes steps: whether to wait longer. Not where D
        has room, so that the transfer must have begun, and D, which reports its transfers, has reported
        none.
        """
        stale_s = self._settings.load_stale_s

        def wait_on(now_s: float) -> bool:
            if not worker.reports_kv or not worker.has_room(now_s, stale_s):
                return True
            return self._transfers.moved_by(turn.request_id) is not None

        return wait_on

    async def _relay_stream(
        self, turn: TurnState, worker: Worker, connection: Connection, reservation: Reservation
    ) -> None:
        """Relay D's stream. The head is sent with the first bytes: until then the turn can move to another
        D.
        """
        client, dialect = turn.client, turn.request.streaming
        try:
            data = await connection.read()
            while data and not dialect.begun(data):
                more = await connection.read()
                if not more:
                    break
                data += more
            if not data:
                raise UpstreamError("empty", "the engine's stream was empty")
            _raise_first_error(worker, dialect.first_error(data))
        except UpstreamError as error:
            raise self._engines.failed(worker, error) from None
        reservation.prefilled()
        watch = turn.watch
        if watch is None:
            watch = turn.watch = dialect.watch(turn.request, turn.reported_cached)
            self._note_response(turn, dialect.response_id(data), worker)
            turn.first_token(self._loop.time())
            client.response.start(200, [*_STREAM_HEADERS, *turn.headers()])
        else:
            watch.resume(turn.reported_cached)

        filtered, push = watch.feed, client.response.push

        def feed(data: bytes) -> bool:
            out = filtered(data)
            if not out or push(out):
                return True
            turn.lagged = True
            return False

        try:
            last = await connection.pipe(data, feed, client.drained)
        except UpstreamError as error:
            turn.seen(watch.seen, self._loop.time())
            self._engines.failed(worker, error)
            raise StreamBrokenError(worker, error.kind) from None
        except asyncio.CancelledError:
            watch.end()
            turn.seen(watch.seen, self._loop.time())
            if client.gone and watch.seen.done:
                return  # a client that has its [DONE] need not wait for the end of the HTTP message
            raise
        last = filtered(last) if last else last
        rest = watch.end()
        turn.seen(watch.seen, self._loop.time())
        if not watch.seen.done:
            if last:
                push(last)
            raise StreamBrokenError(worker, "truncated")
        client.response.end(last + rest)

    async def _relay_whole(self, turn: TurnState, worker: Worker, connection: Connection) -> None:
        seen = Seen()
        try:
            data = await connection.read_all(self._settings.max_answer_bytes)
            clean = turn.request.dialect.whole(data, seen, turn.reported_cached)
        except UpstreamError as error:
            raise self._engines.failed(worker, error) from None
        except msgspec.DecodeError as error:
            raise EngineFailedError(worker, "protocol", f"its answer is no such JSON: {error}") from None
        self._note_response(turn, seen.response_id, worker)
        turn.seen_whole(seen, self._loop.time())
        turn.client.response.send(200, [*_JSON_HEADERS, *turn.headers()], clean)

    def _note_response(self, turn: TurnState, response_id: str, worker: Worker) -> None:
        if response_id and turn.request.keeps:
            key = turn.client.visit.key
            self._stored.note(response_id, key.name if key is not None else "", worker)

    async def _answer_of_prefill(self, turn: TurnState, prefilled: Prefilled) -> None:
        """Send P's answer to the client: its one token ended the answer, and D is not needed."""
        turn.answered_by_prefill()
        seen = Seen()
        dialect = turn.request.generating
        clean = dialect.whole(prefilled.body, seen, None)
        now_s = self._loop.time()
        if turn.watch is not None:  # of a stream that moved here
            turn.seen(seen, now_s)
            turn.watch.resume(None)
            turn.client.response.end(turn.watch.feed(dialect.as_stream(clean, turn.request)))
            return
        if not turn.request.stream:
            turn.seen_whole(seen, now_s)
            turn.client.response.send(200, [*_JSON_HEADERS, *turn.headers()], clean)
            return
        turn.first_token(now_s)
        turn.seen(seen, now_s)
        turn.client.response.start(200, [*_STREAM_HEADERS, *turn.headers()])
        turn.client.response.end(dialect.as_stream(clean, turn.request))


def _raise_first_error(worker: Worker, found: tuple[bytes, Any] | None) -> None:
    """A stream that begins with an error event has not begun. Raises EngineFailedError or ApiError."""
    if found is None:
        return
    payload, code = found
    if code in (400, 422):
        raise errors.of_engine(code, payload)
    raise EngineFailedError(worker, "stream-error", "its stream began with an error")
