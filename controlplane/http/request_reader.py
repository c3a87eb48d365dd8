"""Reads the requests of one connection with httptools, and bounds what each head and body may cost."""

import asyncio
from typing import Protocol

import httptools

from controlplane.errors import ApiError
from controlplane.http.context import Limits
from controlplane.http.exchange import Exchange
from controlplane.http.http_request import Headers, HttpRequest

_MAX_HEADERS = 256
_MAX_OFFERS = 16  # of another protocol, in one read


class Receiver(Protocol):
    """Who takes the requests that were read."""

    def overrun(self) -> ApiError | None:
        """The error that refuses one more request, where too many wait already."""

    def begin(self, request: HttpRequest, version: str, keep_alive: bool) -> Exchange:
        """A head is complete."""

    def line_up(self, exchange: Exchange) -> None:
        """A request is to be answered: it is complete, or its rest will be ignored."""

    def refuse(self, error: ApiError) -> None:
        """What was sent cannot be read, or is too much: answer with the error and close."""

    def end_after_last(self) -> None:
        """Nothing that follows is HTTP."""


class _RefusedError(Exception):
    """Stops the parser; `_refusal` says why."""


class _Trailers(Headers):
    """Discards the header lines that follow a body."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


_TRAILERS = _Trailers()


class RequestReader:
    """`since_s`: since when the rest of a head or body, or the next request, is awaited; 0 = it is not."""

    def __init__(self, receiver: Receiver, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self._receiver = receiver
        self._limits = limits
        self._loop = loop
        self._parser = self._new_parser()
        self._target = b""
        self._headers: Headers = []
        self._read_bytes = 0  # size of the read that is being parsed
        self._own_bytes = 0  # upper bound of its bytes in the head or body that it leaves incomplete
        self._awaited_bytes = 0  # bytes of that head or body in earlier reads
        self._offers = 0
        self._refusal = ApiError(400, "this is no valid HTTP request")
        self.in_head = True  # a head is expected or incomplete
        self.incoming: Exchange | None = None  # its head is complete, its body is not
        self.since_s = loop.time()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Ignore bytes after a request that is the connection's last.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    @property
    def untouched(self) -> bool:
        """Whether no byte of the expected head has come."""
        return not (self._awaited_bytes or self._target)

    def feed(self, data: bytes) -> None:
        """Parse what the client sent, and report it to the receiver."""
        self._read_bytes = self._own_bytes = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
            return
        except httptools.HttpParserError:
            self._receiver.refuse(self._refusal)
            return
        if self.in_head:
            self._awaited_bytes += self._own_bytes
            if self._awaited_bytes > self._limits.head_bytes:
                self._receiver.refuse(self._head_too_large())
        elif self.incoming is not None:
            self._awaited_bytes += self._own_bytes
            self.incoming.request.join_parts()
            if self._awaited_bytes > 2 * self._limits.body_bytes + self._limits.head_bytes:
                self._receiver.refuse(self._body_too_large())  # overhead of tiny chunks, or trailers
        else:
            return
        if not self.since_s:
            self.since_s = self._loop.time()

    def break_off(self, exchange: Exchange, error: ApiError) -> None:
        """Answer with the error, without the rest of the body."""
        if exchange.request.refusal is None:
            exchange.request.refuse(error)
            if not exchange.request.eager:
                self._receiver.line_up(exchange)

    # --- httptools' callbacks ---

    def on_message_begin(self) -> None:
        if (refusal := self._receiver.overrun()) is not None:
            self._refusal = refusal
            raise _RefusedError
        self._target = b""
        self._headers = []
        self.in_head = True
        self.since_s, self._awaited_bytes = 0.0, 0

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
        request = HttpRequest(parser.get_method().decode("ascii"), self._target, headers)
        if b"upgrade" in request.headers and parser.should_upgrade():
            return  # feed_data raises HttpParserUpgrade
        self._headers = _TRAILERS
        self.in_head, self._awaited_bytes, self.since_s = False, 0, 0.0
        request.refusal = self._too_long(request)
        self.incoming = self._receiver.begin(request, parser.get_http_version(), parser.should_keep_alive())

    def on_body(self, data: bytes) -> None:
        exchange = self.incoming
        if exchange is None or exchange.request.refusal is not None:
            return
        if not exchange.request.add(data, self._limits.body_bytes):
            self.break_off(exchange, self._body_too_large())

    def on_message_complete(self) -> None:
        exchange, self.incoming, self.since_s = self.incoming, None, 0.0
        self._own_bytes = 0
        if exchange is None:
            return
        request = exchange.request
        waits = request.refusal is None and not request.eager
        request.complete()
        if waits:
            self._receiver.line_up(exchange)

    # --- limits ---

    def _head_size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) for name, value in self._headers)

    def _head_too_large(self) -> ApiError:
        return ApiError(
            431, f"a head may have {self._limits.head_bytes} bytes and {_MAX_HEADERS} header lines"
        )

    def _body_too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._limits.body_bytes} bytes")

    def _too_long(self, request: HttpRequest) -> ApiError | None:
        """By the length that the head announces."""
        length = request.headers.get(b"content-length", b"")
        too_long = len(length) > 3 and length.isdigit() and int(length[:20]) > self._limits.body_bytes
        return self._body_too_large() if too_long else None

    def _decline(self, rest: bytes) -> None:
        """Read a request that offers another protocol, as some clients' first one does, without the offer.

        The parser takes every offer for accepted and stops, so a new one reads the head again.
        """
        self._offers += 1
        if not self.in_head:  # CONNECT, which is no offer, and what follows is not HTTP
            self._receiver.end_after_last()
            return
        if self._offers > _MAX_OFFERS:
            self._receiver.refuse(self._refusal)
            return
        parser, self._parser = self._parser, self._new_parser()
        first = b"%b %b HTTP/%b" % (parser.get_method(), self._target, parser.get_http_version().encode())
        lines = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        self.feed(b"\r\n".join([first, *lines, b"", rest]))
        self._offers -= 1
