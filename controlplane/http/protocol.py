"""HTTP/1.1 with clients: one connection, its requests in order, and bounds on what it may cost.

The application sees a request once it is complete, or with its head where it wants so, or as soon as the
answer is an error whatever follows.
"""

import asyncio
from collections import deque

import httptools

from controlplane.errors import ApiError
from controlplane.http.context import ServerContext
from controlplane.http.exchange import TRAILERS, Exchange, Headers, last_answer

_MAX_HEADERS = 256
_MAX_PIPELINED = 16  # requests that wait; more are not read, and neither is the news of a hang-up
_MAX_AHEAD = 256  # that wait since one read brought them all
_MAX_OFFERS = 16  # of another protocol, in one read
TOLD_SHARE = 8  # one eighth more connections than allowed get an answer, the rest are cut off
_LINGER_S, _LINGER_BYTES = 2.0, 32 << 20
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class _RefusedError(Exception):
    """Breaks off the parser; `_refusal` says why."""


class Protocol(asyncio.Protocol):
    """One connection."""

    _transport: asyncio.Transport

    def __init__(self, context: ServerContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._limits = context.limits
        self._loop = loop
        self._parser = self._new_parser()
        self._target = b""
        self._headers: Headers = []
        self._in_head = True  # one is awaited, or under way
        self._read_bytes = 0  # of what is being parsed
        self._own_bytes = 0  # upper bound of those that belong to the head or body still awaited at its end
        self._awaited_bytes = 0  # of that head or body, which were read before
        self._offers = 0
        self._incoming: Exchange | None = None  # its head is complete, its body is not
        self._since_s = loop.time()  # since when the head, or the body, or the next request is awaited
        self._deaf = False  # what comes is not HTTP any more, or nobody's business
        self._dropped = 0  # of it, bytes
        self._current: Exchange | None = None
        self._queue: deque[Exchange] = deque()  # pipelined ones
        self._reading_paused = False
        self.write_paused = False
        self._drain: asyncio.Future[None] | None = None
        self._refusal = ApiError(400, "this is no valid HTTP request")
        self._last_word: ApiError | None = None  # after the answers to what came before it
        self._unread_bytes = 0  # of answers, when it was last looked

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # What follows a request that is the connection's last is nobody's business.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        connections = self._context.connections
        connections.add(self)
        beyond = len(connections) - self._limits.connections
        if beyond > 1 + self._limits.connections // TOLD_SHARE:
            self._transport.abort()
        elif beyond > 0:  # its request is waited for: many a client cannot read an answer before it has asked
            self._deaf, self._last_word = True, ApiError(503, "too many connections", retry_after_s=1)
            self._loop.call_later(_LINGER_S, self._transport.close)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self._transport.is_closing():
            self._drop(data)
            return
        self._read_bytes = self._own_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal)
            return
        if self._in_head:
            self._awaited_bytes += self._own_bytes
            if self._awaited_bytes > self._limits.head_bytes:
                self._refuse(self._head_too_large())
        elif self._incoming is not None:
            self._awaited_bytes += self._own_bytes
            self._incoming.pack()
            if self._awaited_bytes > 2 * self._limits.body_bytes + self._limits.head_bytes:
                self._refuse(self._body_too_large())  # in chunks that are next to nothing, or trailers
        else:
            return
        if not self._since_s:
            self._since_s = self._loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._context.connections.discard(self)
        self._abandon()
        self._wake()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake()
        if self._current is None and not self._transport.is_closing():
            self._go_on()

    async def writable(self) -> None:
        """Until the client has read most of what it was sent, or is gone."""
        if self.write_paused and not self._transport.is_closing():
            self._drain = self._loop.create_future()
            await self._drain

    def _wake(self) -> None:
        waiter, self._drain = self._drain, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- httptools' callbacks ---

    def on_message_begin(self) -> None:
        if len(self._queue) >= _MAX_AHEAD:
            self._refusal = ApiError(429, f"more than {_MAX_AHEAD} requests wait on this connection")
            raise _RefusedError
        self._target = b""
        self._headers = []
        self._in_head = True
        self._since_s, self._awaited_bytes = 0.0, 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        headers, limit = self._headers, self._limits.head_bytes
        if len(headers) > _MAX_HEADERS or (
            self._awaited_bytes + self._read_bytes > limit and self._head_size() > limit
        ):
            self._refusal = self._head_too_large()
            raise _RefusedError
        parser = self._parser
        exchange = Exchange(
            self,
            self._transport,
            parser.get_method().decode("ascii"),
            self._target,
            headers,
            parser.get_http_version(),
            parser.should_keep_alive(),
        )
        if b"upgrade" in exchange.headers and parser.should_upgrade():
            return  # the parser stops here
        self._incoming, self._headers = exchange, TRAILERS
        self._in_head, self._awaited_bytes, self._since_s = False, 0, 0.0
        exchange.refusal = self._context.application.judge(exchange) or self._too_long(exchange)
        if exchange.refusal is not None or exchange.eager:
            self._line_up(exchange)
        elif exchange.headers.get(b"expect", b"").lower() == b"100-continue" and (
            self._current is None and parser.get_http_version() == "1.1"
        ):
            self._transport.write(_CONTINUE)

    def on_body(self, data: bytes) -> None:
        exchange = self._incoming
        if exchange is None or exchange.refusal is not None:
            return
        if not exchange.add(data, self._limits.body_bytes):
            exchange.refuse(self._body_too_large())
            if not exchange.eager:
                self._line_up(exchange)

    def on_message_complete(self) -> None:
        exchange, self._incoming, self._since_s = self._incoming, None, 0.0
        self._own_bytes = 0
        if exchange is None:
            return
        waits = exchange.refusal is None and not exchange.eager
        exchange.complete()
        if waits:
            self._line_up(exchange)

    # --- limits ---

    def _head_size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) for name, value in self._headers)

    def _head_too_large(self) -> ApiError:
        return ApiError(
            431, f"a head may have {self._limits.head_bytes} bytes and {_MAX_HEADERS} header lines"
        )

    def _body_too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._limits.body_bytes} bytes")

    def _too_long(self, exchange: Exchange) -> ApiError | None:
        """By what the head says."""
        length = exchange.headers.get(b"content-length", b"")
        too_long = len(length) > 3 and length.isdigit() and int(length[:20]) > self._limits.body_bytes
        return self._body_too_large() if too_long else None

    def sweep(self, now_s: float) -> None:
        """End what keeps us waiting."""
        if self._current is not None:
            self._current.sweep(now_s)
        waited_s = now_s - self._since_s if self._since_s else 0.0
        if self._reading_paused or self._deaf or self._transport.is_closing():
            pass
        elif self._in_head:
            if waited_s > self._limits.head_s:
                self._head_is_late()
            return
        elif self._incoming is not None:
            if waited_s > self._limits.body_s:
                self._break_off(self._incoming, ApiError(408, "the body did not arrive in time"))
            return
        if self._current is None and waited_s > self._limits.idle_s:
            unread_bytes = self._transport.get_write_buffer_size()
            if unread_bytes == 0 or unread_bytes == self._unread_bytes:
                self._transport.abort()
            else:
                self._unread_bytes, self._since_s = unread_bytes, now_s

    def _head_is_late(self) -> None:
        if self._awaited_bytes or self._target or self._current is not None:
            self._refuse(ApiError(408, "the request did not arrive in time"))
        else:  # nothing was asked: a word could only be taken for the answer to what is asked just now
            self._transport.close()

    def _break_off(self, exchange: Exchange, error: ApiError) -> None:
        """The rest of its body is not waited for."""
        if exchange.refusal is None:
            exchange.refuse(error)
            if not exchange.eager:
                self._line_up(exchange)

    def _refuse(self, error: ApiError) -> None:
        """The error as an answer, in its turn, and the end of the connection."""
        self._deaf, self._since_s = True, self._loop.time()
        if self._incoming is not None:
            self._break_off(self._incoming, error)
        elif self._current is not None or self.write_paused:
            self._last_word = error
        else:
            self._transport.write(last_answer(error))
            self._linger()

    def _abandon(self) -> None:
        """Nobody waits for an answer."""
        self._queue.clear()
        incoming, self._incoming = self._incoming, None
        if incoming is not None and incoming.task is None:
            self._context.application.lost(incoming)
        if self._current is not None:
            self._current.hang_up()

    def _decline(self, rest: bytes) -> None:
        """The client offers to go on in another protocol, as some do with every connection's first request.
        The parser would have it taken: the request is read again without the offer."""
        self._offers += 1
        if not self._in_head:  # CONNECT: it was not an offer, and what follows is no HTTP
            self._deaf = True
            last = self._queue[-1] if self._queue else self._current
            if last is not None:
                last.keep_alive = False
            return
        if self._offers > _MAX_OFFERS:
            self._refuse(self._refusal)
            return
        parser, self._parser = self._parser, self._new_parser()
        first = b"%b %b HTTP/%b" % (parser.get_method(), self._target, parser.get_http_version().encode())
        lines = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        self.data_received(b"\r\n".join([first, *lines, b"", rest]))
        self._offers -= 1

    # --- one exchange after another ---

    def _line_up(self, exchange: Exchange) -> None:
        if self._current is None and not self.write_paused:
            self._start(exchange)
            return
        self._queue.append(exchange)
        if len(self._queue) > _MAX_PIPELINED or self._current is None:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        self._context.serving.add(exchange)
        exchange.task = self._loop.create_task(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._context.application(exchange)
        except Exception as error:
            self._context.failed(exchange, error)
        finally:
            self._ended(exchange)

    def _ended(self, exchange: Exchange) -> None:
        exchange.unwatch()
        self._context.serving.discard(exchange)
        self._current = None
        closing = self._transport.is_closing()
        if closing or (not self._in_head and self._incoming is None):
            self._since_s = self._loop.time()
        if closing:
            return
        if not exchange.finished:  # it broke off: without its end it does not look whole
            self._transport.abort() if self.write_paused else self._transport.close()
        elif not exchange.arrived:
            self._linger()
        elif not exchange.keep_alive or self._context.stopping:
            self._transport.close()
        elif self._queue or self.write_paused or self._reading_paused or self._last_word is not None:
            self._go_on()

    def _go_on(self) -> None:
        """What comes next, once the client has read most of the answers so far."""
        if self.write_paused:
            self._since_s = self._loop.time()
            self._pause_reading()
        elif self._queue:
            self._start(self._queue.popleft())
        elif self._last_word is not None:
            error, self._last_word = self._last_word, None
            self._transport.write(last_answer(error))
            self._linger()
        elif self._reading_paused:
            self._reading_paused, self._since_s = False, self._loop.time()
            self._transport.resume_reading()

    def _linger(self) -> None:
        """The answer was given before its request was all there. Were the connection closed at once, what
        the client still sends would be met by a reset, which makes many a client lose the answer: so it is
        read and thrown away, for a while."""
        self._deaf, self._incoming, self._since_s = True, None, self._loop.time()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self._transport.close)

    def _drop(self, data: bytes) -> None:
        if self._last_word is not None and self._current is None and not self._queue:
            self._go_on()
        self._dropped += len(data)
        if self._dropped > _LINGER_BYTES:
            self._transport.abort()

    def stop(self) -> None:
        """No more requests: what is being answered is the last."""
        if self._current is None:
            self._transport.close()
        else:
            for exchange in (self._current, *self._queue):
                exchange.keep_alive = False

    def abort(self) -> None:
        self._transport.abort()
