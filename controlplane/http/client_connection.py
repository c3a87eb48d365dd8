"""One client's connection: the reader, the pipeline and the end of it, held to the server's limits.

The application sees a request once it is complete, or from its head on where it asks for that, or as soon as
the answer is an error whatever follows.
"""

import asyncio

from controlplane.errors import ApiError
from controlplane.http.closing import Closing
from controlplane.http.context import ServerContext
from controlplane.http.exchange import Exchange
from controlplane.http.flow import Flow
from controlplane.http.http_request import HttpRequest
from controlplane.http.http_response import HttpResponse
from controlplane.http.pipeline import MAX_AHEAD, Pipeline
from controlplane.http.request_reader import RequestReader

REFUSED_SHARE = 8  # up to one eighth beyond the limit, connections get a 503; any more are cut off
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """Decides what comes next on one connection: another request, another answer, or its end."""

    _transport: asyncio.Transport
    _flow: Flow
    _reader: RequestReader
    _pipeline: Pipeline
    _closing: Closing

    def __init__(self, context: ServerContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._limits = context.limits
        self._loop = loop

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._flow = Flow(self._transport, self._loop)
        self._reader = RequestReader(self, self._limits, self._loop)
        self._pipeline = Pipeline(self._context, self._loop, self._flow, self._ended)
        self._closing = Closing(self._transport, self._loop)
        connections = self._context.connections
        connections.add(self)
        beyond = len(connections) - self._limits.connections
        if beyond > 1 + self._limits.connections // REFUSED_SHARE:
            self._transport.abort()
        elif beyond > 0:  # wait for a request: many clients cannot read an answer before they have sent one
            self._closing.begun = True
            self._closing.last_word = ApiError(503, "too many connections", retry_after_s=1)
            self._closing.after_linger()

    def data_received(self, data: bytes) -> None:
        if self._closing.begun or self._transport.is_closing():
            if self._closing.last_word is not None and self._pipeline.empty:
                self._go_on()
            self._closing.discard(len(data))
        else:
            self._reader.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._context.connections.discard(self)
        incoming, self._reader.incoming = self._reader.incoming, None
        if incoming is not None and incoming.task is None:
            self._context.application.lost(incoming)
        self._pipeline.abandon()
        self._flow.wake()

    def pause_writing(self) -> None:
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        self._flow.resume_writing()
        if self._pipeline.current is None and not self._transport.is_closing():
            self._go_on()

    # --- the reader's reports ---

    def overrun(self) -> ApiError | None:
        if not self._pipeline.full:
            return None
        return ApiError(429, f"more than {MAX_AHEAD} requests wait on this connection")

    def begin(self, request: HttpRequest, version: str, keep_alive: bool) -> Exchange:
        response = HttpResponse(request, self._transport, self._flow, version, keep_alive)
        exchange = Exchange(request, response, self._flow, self._transport)
        if (refusal := self._context.application.judge(exchange)) is not None:
            request.refusal = refusal
        if request.refusal is not None or request.eager:
            self._pipeline.line_up(exchange)
        elif request.headers.get(b"expect", b"").lower() == b"100-continue" and (
            self._pipeline.current is None and version == "1.1"
        ):
            self._transport.write(_CONTINUE)
        return exchange

    def line_up(self, exchange: Exchange) -> None:
        self._pipeline.line_up(exchange)

    def refuse(self, error: ApiError) -> None:
        """Answer with the error once it is its turn, and end the connection."""
        self._closing.begun, self._reader.since_s = True, self._loop.time()
        if self._reader.incoming is not None:
            self._reader.break_off(self._reader.incoming, error)
        elif self._pipeline.current is not None or self._flow.write_paused:
            self._closing.last_word = error
        else:
            self._closing.say(error)

    def end_after_last(self) -> None:
        self._closing.begun = True
        self._pipeline.end_after_last()

    # --- after each answer ---

    def _ended(self, exchange: Exchange) -> None:
        reader, closing = self._reader, self._transport.is_closing()
        if closing or (not reader.in_head and reader.incoming is None):
            reader.since_s = self._loop.time()
        if closing:
            return
        if not exchange.response.finished:  # no end of body, so that it does not look whole
            self._transport.abort() if self._flow.write_paused else self._transport.close()
        elif not exchange.request.arrived:
            self._linger()
        elif not exchange.response.keep_alive or self._context.stopping:
            self._transport.close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Go on with the next request, once the client has read most of the answers to earlier ones."""
        flow, closing = self._flow, self._closing
        if flow.write_paused:
            self._reader.since_s = self._loop.time()
            flow.pause_reading()
        elif self._pipeline.start_next():
            pass
        elif closing.last_word is not None:
            closing.say(closing.last_word)
            self._reader.since_s = self._loop.time()
        elif flow.reading_paused:
            self._reader.since_s = self._loop.time()
            flow.resume_reading()

    def _linger(self) -> None:
        self._reader.incoming, self._reader.since_s = None, self._loop.time()
        self._closing.linger()

    # --- the server's calls ---

    def sweep(self, now_s: float) -> None:
        """End what has passed its deadline."""
        reader, limits, current = self._reader, self._limits, self._pipeline.current
        if current is not None:
            current.sweep(now_s)
        waited_s = now_s - reader.since_s if reader.since_s else 0.0
        reads = not (self._flow.reading_paused or self._closing.begun or self._transport.is_closing())
        if reads and reader.in_head:
            if waited_s > limits.head_s:
                self._head_is_late()
        elif reads and reader.incoming is not None:
            if waited_s > limits.body_s:
                reader.break_off(reader.incoming, ApiError(408, "the body did not arrive in time"))
        elif current is None and waited_s > limits.idle_s:
            if self._flow.client_reads():
                reader.since_s = now_s
            else:
                self._transport.abort()

    def _head_is_late(self) -> None:
        if self._reader.untouched and self._pipeline.current is None:
            # An error could be taken for the answer to a request that is on its way.
            self._transport.close()
        else:
            self.refuse(ApiError(408, "the request did not arrive in time"))

    def stop(self) -> None:
        """Take no more requests: the connection ends with the answers under way."""
        if self._pipeline.current is None:
            self._transport.close()
        else:
            self._pipeline.end_after_all()

    def abort(self) -> None:
        """Cut the client off."""
        self._transport.abort()
