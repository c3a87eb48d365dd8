"""The answer to one request, written straight to the connection's transport.

No task and no queue stand in between: a streamed chunk goes from the engine's reading callback to the
client's socket.
"""

import asyncio
from http import HTTPStatus

from controlplane.errors import OPENAI, ApiError, ErrorShape
from controlplane.http.flow import Flow
from controlplane.http.http_request import Headers, HttpRequest

_COPIED_BYTES = 64 * 1024  # joining head and body costs less than two buffers up to this size of body
_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode() for each in HTTPStatus}
_BODILESS = frozenset({204, 304})


def final_response(error: ApiError) -> bytes:
    """An error that answers no particular request, as the last bytes of a connection."""
    body = OPENAI.body(error)
    lines = [f"HTTP/1.1 {error.status} Refused".encode()]
    lines += [b"%b: %b" % header for header in error.headers()]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)


class HttpResponse:
    """Sent whole by `send`, or piece by piece by `start`, `push` and `end`."""

    __slots__ = (
        "_chunked",
        "_flow",
        "_pending_head",
        "_request",
        "_silent",
        "_transport",
        "common",
        "finished",
        "headers",
        "keep_alive",
        "started",
        "status",
    )

    def __init__(
        self,
        request: HttpRequest,
        transport: asyncio.Transport,
        flow: Flow,
        version: str,
        keep_alive: bool,
    ) -> None:
        self._request = request
        self._transport = transport
        self._flow = flow
        self._chunked = version == "1.1"
        self._silent = request.method == "HEAD"
        self._pending_head = b""  # sent with the first chunk
        self.keep_alive = keep_alive and version == "1.1"  # False: it ends the connection
        self.common: Headers = []  # headers of every answer, errors included
        self.headers: Headers = []  # the headers of this answer, without the common ones
        self.status = 0  # 0 = no answer yet
        self.started = self.finished = False

    def _head(self, status: int, headers: Headers, length: int | None) -> bytes:
        self.started = True
        self.status = status
        if not self._request.arrived:  # the rest of the request stays unread
            self.keep_alive = False
        self.headers = headers
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
            self.keep_alive = False  # the end of the connection marks the end of the body
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def start(self, status: int, headers: Headers, length: int | None = None) -> None:
        """Begin an answer; its head is sent with its first bytes. `length`: the body's, where it is known."""
        self._pending_head = self._head(status, headers, length)

    def push(self, data: bytes) -> bool:
        """Send a chunk; False = the client lags: wait for `Exchange.drained` before the next one."""
        transport = self._transport
        if transport.is_closing() or self._silent:
            return True
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._pending_head:
            data, self._pending_head = self._pending_head + data, b""
        transport.write(data)
        return not self._flow.write_paused

    def end(self, data: bytes = b"") -> None:
        """Send the last bytes of an answer that was started."""
        self.finished = True
        if self._transport.is_closing():
            return
        if self._silent:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        if self._pending_head:
            data, self._pending_head = self._pending_head + data, b""
        self._transport.write(data)

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer at once."""
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
        """Send the error: as the answer, or as the last event of a stream that has begun."""
        if not self.started:
            self.send(error.status, [*error.headers(), *headers], shape.body(error))
        elif not self.finished:
            self.end(shape.event(error))
