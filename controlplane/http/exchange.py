"""One request of a client, and the answer on its way back: heads, chunks, ends, and the news of a hang-up.

Everything is written straight on the connection's transport, without a task or a queue in between: a streamed
chunk goes from the engine's reading callback to the client's socket.
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from typing import Protocol as Interface
from urllib.parse import unquote

import httptools

from controlplane.errors import OPENAI, ApiError, ErrorShape

Headers = list[tuple[bytes, bytes]]
STALL_S = 120.0  # how long a client may leave its stream unread
NEVER = float("inf")
_COPIED_BYTES = 64 * 1024  # a shorter body costs less as one piece with its head
_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_KNOWN_BYTES = 256  # of a target that is kept
_MANY_PARTS = 256  # of a body, in one read
_BODILESS = frozenset({204, 304})
_Place = tuple[str, bytes, bytes]  # path, as it was sent, query


class Connection(Interface):
    """What an exchange needs of the connection that it came on."""

    write_paused: bool

    async def writable(self) -> None:
        """Wait until the client has read most of what it was sent, or is gone."""


class _Trailers(Headers):
    """Takes what comes after a body, and keeps nothing of it."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


TRAILERS = _Trailers()


def last_answer(error: ApiError) -> bytes:
    """The error as what a connection ends with, outside of any exchange."""
    body = OPENAI.body(error)
    lines = [f"HTTP/1.1 {error.status} Refused".encode()]
    lines += [b"%b: %b" % header for header in error.headers()]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)


def _place(target: bytes) -> _Place:
    """Raises httptools.HttpParserError or UnicodeDecodeError where the target is none."""
    return _known_place(target) if len(target) <= _KNOWN_BYTES else _parsed_place(target)


def _parsed_place(target: bytes) -> _Place:
    parts = httptools.parse_url(target)
    raw = parts.path or b"/"
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, raw, parts.query or b""


_known_place = lru_cache(256)(_parsed_place)  # most requests ask for one of a few targets


class Exchange:
    """`gone` is set when the client hangs up; who watches is cancelled then."""

    __slots__ = (
        "_arrival",
        "_body_size",
        "_chunked",
        "_connection",
        "_deadline_s",
        "_held",
        "_packed",
        "_parts",
        "_silent",
        "_transport",
        "answered",
        "arrived",
        "body",
        "common",
        "eager",
        "finished",
        "gone",
        "headers",
        "keep_alive",
        "late",
        "method",
        "on_gone",
        "path",
        "query",
        "raw_headers",
        "raw_path",
        "refusal",
        "started",
        "status",
        "task",
        "visit",
    )

    def __init__(
        self,
        connection: Connection,
        transport: asyncio.Transport,
        method: str,
        target: bytes,
        headers: Headers,
        version: str,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self._transport = transport
        self.method = method
        self.path, self.raw_path, self.query = _place(target)
        self.raw_headers = headers
        self.headers = dict(headers)
        self.keep_alive = keep_alive and version == "1.1"
        self._chunked = version == "1.1"
        self._silent = method == "HEAD"
        self._parts: list[bytes] = []
        self._packed = 0  # of the parts, those that are many put together
        self._body_size = 0
        self._held = b""  # a head that goes out with the first chunk
        self._deadline_s = NEVER
        self._arrival: asyncio.Future[None] | None = None
        self.body = b""
        self.arrived = False  # all of the request
        self.eager = False  # it is served as soon as its head is there
        self.refusal: ApiError | None = None  # the answer, decided before the request was complete
        self.common: Headers = []  # of every answer, errors included
        self.visit: Any = None  # what the application knows of who calls
        self.answered: Headers = []
        self.status = 0  # as answered; 0 = not at all
        self.started = self.finished = self.gone = self.late = False
        self.task: asyncio.Task[None] | None = None
        self.on_gone: Callable[[], None] | None = None

    @property
    def peer(self) -> Any:
        """The client's address."""
        return self._transport.get_extra_info("peername")

    @property
    def secure(self) -> bool:
        return self._transport.get_extra_info("ssl_object") is not None

    # --- the request ---

    def add(self, data: bytes, limit_bytes: int) -> bool:
        """A part of the body; False where it is too long by now."""
        self._parts.append(data)
        self._body_size += len(data)
        return self._body_size <= limit_bytes

    def pack(self) -> None:
        """Parts of a few bytes would take many times their size."""
        parts = self._parts
        if len(parts) - self._packed > _MANY_PARTS:
            parts[self._packed :] = [b"".join(parts[self._packed :])]
            self._packed += 1

    def complete(self) -> None:
        """Nothing more follows."""
        parts, self._parts = self._parts, []
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.arrived = True
        self._tell()

    def refuse(self, error: ApiError) -> None:
        """The rest of the request is not waited for."""
        self.refusal = error
        self._tell()

    def _tell(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def whole(self) -> None:
        """Until all of the request is there, or the client is gone. Raises ApiError where it is too much or
        too late."""
        if not self.arrived and self.refusal is None and not self.gone:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if self.refusal is not None:
            raise self.refusal

    # --- hang-ups and deadlines ---

    def watch(self, deadline_s: float = NEVER) -> None:
        """From now on a hang-up, or the deadline, cancels the serving task; the latter sets `late`.

        Raises CancelledError where the client has hung up already.
        """
        if self.gone:
            raise asyncio.CancelledError
        self.on_gone = self._cancel
        self._deadline_s = deadline_s

    def unwatch(self) -> None:
        self.on_gone = None
        self._deadline_s = NEVER

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def hang_up(self) -> None:
        """The client is gone."""
        if not self.finished:
            self.gone = True
            self._tell()
            if self.on_gone is not None:
                self.on_gone()

    def sweep(self, now_s: float) -> None:
        if now_s > self._deadline_s:
            self._deadline_s = NEVER
            self.late = True
            self._cancel()

    def give_up(self) -> bool:
        """Whether the cancellation that came was for the deadline alone: the task may go on and say so."""
        return self.late and not self.gone and self.task is not None and not self.task.uncancel()

    # --- the answer ---

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        self.started = True
        self.status = status
        if not self.arrived:  # what is still to come of the request nobody reads
            self.keep_alive = False
        self.answered = headers
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        lines += [b"%b: %b\r\n" % header for header in headers]
        lines += [b"%b: %b\r\n" % header for header in self.common]
        if status in _BODILESS:
            self._chunked = False
        elif length is not None:
            self._chunked = False
            lines.append(b"content-length: %d\r\n" % length)
        elif self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.keep_alive = False  # its end is that of the connection
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def start(self, status: int, headers: Headers, length: int | None = None) -> None:
        """The head of an answer, to go out with its first bytes; `length` where it is known."""
        self._held = self._head(status, headers, length)

    def push(self, data: bytes) -> bool:
        """Send a chunk; False = the client lags: wait for `drained` before the next one."""
        transport = self._transport
        if transport.is_closing() or self._silent:
            return True
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._held:
            data, self._held = self._held + data, b""
        transport.write(data)
        return not self._connection.write_paused

    async def drained(self) -> None:
        """Until the client has read on; one that never does is treated as one that hung up."""
        try:
            async with asyncio.timeout(STALL_S):
                await self._connection.writable()
        except TimeoutError:
            self.gone = True
            raise asyncio.CancelledError from None

    def end(self, data: bytes = b"") -> None:
        """The last of an answer that was started."""
        self.finished = True
        if self._transport.is_closing():
            return
        if self._silent:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        if self._held:
            data, self._held = self._held + data, b""
        self._transport.write(data)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer at once."""
        self.finished = True
        head = self._head(status, headers, len(body))
        if self._transport.is_closing():
            return
        if self._silent:
            self._transport.write(head)
        elif len(body) < _COPIED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def fail(self, error: ApiError, headers: Headers, shape: ErrorShape = OPENAI) -> None:
        """The error as the answer, or as the last event of a stream that has begun."""
        if not self.started:
            self.answer(error.status, [*error.headers(), *headers], shape.body(error))
        elif not self.finished:
            self.end(shape.event(error))
