"""A turn's way through the frontend: parse, identify, features, decide, place, relay, record."""

import asyncio
import logging
import re
import secrets
from typing import Any

import msgspec
from opentelemetry.trace import Span, Tracer

from controlplane import handoff, metrics, migrate, stream
from controlplane.client import Client, Headers
from controlplane.cluster import Reservation, Worker
from controlplane.engines import EngineFailedError, Engines, StreamBrokenError
from controlplane.errors import ApiError
from controlplane.features import FeatureReader
from controlplane.gate import Gate
from controlplane.handoff import Prefilled
from controlplane.history import History
from controlplane.ledger import Ledger
from controlplane.parse import Request
from controlplane.route import Plan, Router
from controlplane.settings import FrontendSettings
from controlplane.spans import Spans
from controlplane.state import TurnState
from controlplane.stream import Seen, StreamWatch
from controlplane.upstream import Connection, UpstreamError
from ppd.core import names
from ppd.core.names import Path, Reason

MAX_TRIES = 3  # of each leg
_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON_HEADERS: Headers = [(b"content-type", b"application/json")]


class TurnHandler:
    """Serves `/v1/chat/completions` and `/v1/completions` as a bare ASGI application."""

    def __init__(
        self,
        settings: FrontendSettings,
        router: Router,
        features: FeatureReader,
        history: History,
        engines: Engines,
        ledger: Ledger,
        tracer: Tracer | None,
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._router = router
        self._features = features
        self._history = history
        self._engines = engines
        self._ledger = ledger
        self._tracer = tracer
        self._log = logger
        self._loop = asyncio.get_running_loop()
        self.gate = Gate(settings.max_running, settings.max_queued, settings.queue_s)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = Client(scope, receive, send)
        started_s = self._loop.time()
        request_id = secrets.token_hex(12)
        shown_id = client.headers.get(b"x-request-id", b"")
        shown = shown_id if _CLIENT_ID.fullmatch(shown_id) else request_id.encode()
        try:
            body = await client.read_body(self._settings.max_body_bytes, self._settings.body_s)
            request = Request(body, client.path == "/v1/chat/completions", client.headers)
            self._router.cluster.check(request.model)
            force = self._force(client)
        except ApiError as error:
            self._ledger.refused(error.status)
            await client.fail(error, [(b"x-request-id", shown)])
            return
        except asyncio.CancelledError:
            if not client.gone:
                raise
            return
        spans = Spans(self._tracer, client.headers, client.path)
        turn = TurnState(request, client, spans, request_id, shown, started_s, force)
        turn.slo = client.headers.get(names.H_SLO.encode(), b"").decode("latin-1") or self._settings.slo
        client.watch()
        try:
            await self.gate.enter()
            try:
                turn.queued_s = self._loop.time() - started_s
                await self._serve(turn)
            finally:
                self.gate.leave()
        except ApiError as error:
            turn.failed(error.status)
            await client.fail(error, turn.headers())
        except asyncio.CancelledError:
            if not client.gone:
                raise
            turn.cancelled()
        except Exception:
            self._log.exception("turn %s", request_id)
            turn.failed(500)
            await client.fail(ApiError(500, "internal error"), turn.headers())
        finally:
            client.unwatch()
            self._ledger.close(turn, self._loop.time())

    # --- before the engines ---

    def _force(self, client: Client) -> Path | None:
        """An operator's word, with the admin key, on one turn's path; from anybody else it is nothing."""
        wish = client.headers.get(b"x-ppd-force-route")
        key = self._settings.admin_key
        if wish is None or not key:
            return None
        if not secrets.compare_digest(client.headers.get(b"x-ppd-admin-key", b""), key.encode()):
            return None
        try:
            return Path(wish.decode("latin-1"))
        except ValueError:
            raise ApiError(400, f"x-ppd-force-route: one of {', '.join(Path)}") from None

    async def _serve(self, turn: TurnState) -> None:
        """Identify, decide and place; then the legs, moving to other engines until the first byte is sent."""
        request = turn.request
        begin_s = self._loop.time()
        match = self._features.find(request, begin_s)
        if match is None and self._history.may_know(request):
            match = await self._history.fetch(request)
            begin_s = self._loop.time()
        turn.conversation = self._features.read(request, match, begin_s)
        failed: frozenset[str] = frozenset()
        while True:
            with turn.spans.leg(names.SPAN_ROUTE) as span:
                now_s = self._loop.time()
                plan = self._router.plan(request, turn.conversation, turn.slo, now_s, failed, turn.force)
                turn.place(plan)
                if span.is_recording():
                    span.set_attributes(turn.route_attributes())
            if not failed:
                metrics.DECISION.observe(self._loop.time() - begin_s)
                self._history.reserve(turn)
            try:
                await self._run(turn, plan)
                return
            except EngineFailedError as error:
                turn.retries += 1
                metrics.RETRIES.labels("decode", error.kind).inc()
                failed |= {error.worker.id}
                if len(failed) >= MAX_TRIES or not self._router.can_serve(
                    request.model, failed, self._loop.time()
                ):
                    raise ApiError(502, "the engine that took this request failed") from None
                turn.moved = Reason.DECODE_FAILED
            except StreamBrokenError as error:
                failed |= {error.worker.id}
                if not await self._can_go_on(turn, failed):
                    raise ApiError(502, "the engine failed in the middle of the answer") from error
                if turn.client.finished:
                    return

    async def _can_go_on(self, turn: TurnState, failed: frozenset[str]) -> bool:
        """After a stream broke: it had ended but for the last event, or another engine can go on with it."""
        watch = turn.watch
        if watch is None:
            return False
        if watch.sent.finished:
            turn.seen(watch.seen, self._loop.time())
            await turn.client.end(stream.DONE)
            return True
        moved = migrate.continuation(turn.asked, watch.sent)
        if moved is None or len(failed) >= MAX_TRIES:
            return False
        if not self._router.can_serve(moved.model, failed, self._loop.time()):
            return False
        turn.migrate(moved)
        metrics.MIGRATIONS.inc()
        return True

    # --- the legs ---

    async def _run(self, turn: TurnState, plan: Plan) -> None:
        """Both legs. Raises EngineFailedError while another D may still take the turn."""
        features = turn.conversation.turn
        to_compute = 0 if plan.prefill else features.prompt - (features.d_cached if plan.cached else 0)
        with Reservation(plan.decode, to_compute) as reservation:
            prefilled = await self._prefill(turn, plan) if plan.prefill else None
            if prefilled is not None and prefilled.finished:
                await self._answer_of_prefill(turn, prefilled)
                return
            with turn.spans.leg(names.SPAN_DECODE, {"ppd.worker": plan.decode.name}) as span:
                connection = await self._ask_decode(turn, plan.decode, prefilled, span)
                try:
                    if turn.request.stream:
                        await self._relay_stream(turn, plan.decode, connection, reservation)
                    else:
                        await self._relay_whole(turn, plan.decode, connection)
                finally:
                    connection.close()

    async def _prefill(self, turn: TurnState, plan: Plan) -> Prefilled | None:
        """The hop through P, or through another P; None where none of them could: D then does it all."""
        tried: frozenset[str] = frozenset()
        worker: Worker | None = plan.prefill
        begin_s = self._loop.time()
        while worker is not None and len(tried) < MAX_TRIES:
            cached = turn.conversation.turn.p_cached
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
                        worker, turn.engine_path, turn.engine_headers(span, "-p"), body
                    )
                except EngineFailedError as error:
                    span.set_attribute("ppd.error", str(error))
                    metrics.RETRIES.labels("prefill", error.kind).inc()
                    turn.retries += 1
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
        hold = turn.hold = self._settings.pullback and worker.record.bidirectional
        body = handoff.decode_body(turn.request, kv, turn.spans.parent_of(span), turn.request_id, hold)
        try:
            return await self._engines.send(
                worker, turn.engine_path, turn.engine_headers(span), body, self._settings.first_byte_s
            )
        except EngineFailedError as error:
            if prefilled is not None and error.kind in ("refused", "connect-timeout"):
                other = self._router.another_decode(turn.request.model, worker, self._loop.time())
                if other is not None:
                    self._engines.release(other, prefilled)
            raise

    async def _relay_stream(
        self, turn: TurnState, worker: Worker, connection: Connection, reservation: Reservation
    ) -> None:
        """The head goes out with the first bytes, so that until then the turn can move to another D."""
        client = turn.client
        try:
            data = await connection.read()
            if not data:
                raise UpstreamError("empty", "the engine's stream was empty")
            _raise_first_error(worker, data)
        except UpstreamError as error:
            raise self._engines.failed(worker, error) from None
        reservation.prefilled()
        watch = turn.watch
        if watch is None:
            watch = StreamWatch(turn.request.wants_usage, turn.request.n == 1, turn.reported_cached)
            turn.watch = watch
            turn.first_token(self._loop.time())
            await client.start(200, [*_STREAM_HEADERS, *turn.headers()])
        else:
            watch.resume(turn.reported_cached)

        def feed(data: bytes) -> bool:
            out = watch.feed(data)
            return client.push(out) if out else True

        try:
            await connection.pipe(data, feed, client.drained)
        except UpstreamError as error:
            turn.seen(watch.seen, self._loop.time())
            self._engines.failed(worker, error)
            raise StreamBrokenError(worker, error.kind) from None
        except asyncio.CancelledError:
            watch.end()
            turn.seen(watch.seen, self._loop.time())
            raise
        rest = watch.end()
        turn.seen(watch.seen, self._loop.time())
        if not watch.seen.done:
            raise StreamBrokenError(worker, "truncated")
        await client.end(rest)

    async def _relay_whole(self, turn: TurnState, worker: Worker, connection: Connection) -> None:
        seen = Seen()
        try:
            data = await connection.read_all(self._settings.max_answer_bytes)
            clean = stream.whole_answer(data, seen, turn.reported_cached)
        except UpstreamError as error:
            raise self._engines.failed(worker, error) from None
        except msgspec.DecodeError as error:
            raise EngineFailedError(worker, "protocol", f"its answer is no such JSON: {error}") from None
        now_s = self._loop.time()
        turn.first_token(now_s)
        turn.seen(seen, now_s)
        await turn.client.answer(200, [*_JSON_HEADERS, *turn.headers()], clean)

    async def _answer_of_prefill(self, turn: TurnState, prefilled: Prefilled) -> None:
        """P's one token ended the answer: it is the client's, and D is not needed."""
        turn.answered_by_prefill()
        seen = Seen()
        clean = stream.whole_answer(prefilled.body, seen, None)
        now_s = self._loop.time()
        turn.first_token(now_s)
        turn.seen(seen, now_s)
        if turn.watch is not None:  # of a stream that moved here
            turn.watch.resume(None)
            events = stream.as_stream(clean, turn.request.chat, turn.request.wants_usage)
            await turn.client.end(turn.watch.feed(events))
            return
        if not turn.request.stream:
            await turn.client.answer(200, [*_JSON_HEADERS, *turn.headers()], clean)
            return
        await turn.client.start(200, [*_STREAM_HEADERS, *turn.headers()])
        events = stream.as_stream(clean, turn.request.chat, turn.request.wants_usage)
        await turn.client.end(events)


def _raise_first_error(worker: Worker, data: bytes) -> None:
    """A stream that begins with an error event has not begun. Raises EngineFailedError or ApiError."""
    if not data.startswith(b'data: {"error"'):
        return
    try:
        code = msgspec.json.decode(data[6:].split(b"\n\n")[0])["error"].get("code")
    except (msgspec.DecodeError, KeyError, AttributeError, TypeError):
        code = None
    if code in (400, 422):
        raise ApiError(code, "the engine refused the request")
    raise EngineFailedError(worker, "stream-error", "its stream began with an error")
