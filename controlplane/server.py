"""The HTTP server: uvicorn, with the wire handed to the application, and bounds on what a client may cost.

A streamed chunk then goes from the engine's reading callback to the client's socket without waking a task,
which halves its CPU. Everything else, heads and ends included, goes by ASGI.
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from controlplane.errors import ApiError

WIRE = "ppd.wire"
_SWEEP_TICKS = 10  # of uvicorn's loop, each 0.1 s
_MAX_HEADERS = 256
_LINGER_S, _LINGER_BYTES = 2.0, 32 << 20


class Limits(NamedTuple):
    """What a client may cost before the application sees anything of it."""

    head_bytes: int = 64 << 10
    head_s: float = 20.0
    connections: int = 16_384


class Wire:
    """The client's connection, for chunks of a chunked answer whose head was sent by ASGI, and for the news
    that the client hung up, which then costs no task that waits for it."""

    __slots__ = ("_flow", "_transport", "is_last", "on_gone")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl, is_last: Callable[[], bool]) -> None:
        """`is_last`: to be asked before an answer begins, whether its connection ends with it."""
        self._transport = transport
        self._flow = flow
        self.is_last = is_last
        self.on_gone: Callable[[], None] | None = None

    def write(self, data: bytes) -> bool:
        """Send one chunk; False = the client lags: wait for `drained` before the next one."""
        transport = self._transport
        if transport.is_closing():
            return True
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not self._flow.write_paused

    async def drained(self) -> None:
        await self._flow.drain()


class _Parting:
    """The transport of an answer that is given before its request was all there. Were it closed at once, what
    the client still sends would be met by a reset, which makes many a client lose the answer."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.closed = False
        self._left = _LINGER_BYTES

    def close(self) -> None:
        """Nothing more is sent, and what comes is read and thrown away, for a while."""
        self.closed = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(_LINGER_S, self._transport.close)

    def drop(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.close()


class _HeadTooLargeError(Exception):
    """Breaks off the parser in the middle of a head."""


class Protocol(HttpToolsProtocol):
    """uvicorn's, with the wire among the scope's extensions, and with limits on a request's head."""

    def __init__(self, limits: Limits, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self._limits = limits
        self._head_bytes = 0  # of a head that is not complete yet
        self._head_since_s = self.loop.time()  # 0 = no head is awaited
        self._served: RequestResponseCycle | None = None
        self._parting: _Parting | None = None
        self._refusal = ApiError(400, "this is no valid HTTP request")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wire = Wire(transport, self.flow, self._is_last)
        self._extensions = {WIRE: self._wire}
        if len(self.connections) > self._limits.connections:
            self._refuse(ApiError(503, "too many connections", retry_after_s=1))

    def _is_last(self) -> bool:
        """Whether a part of the request that is answered now is still to come, which nobody will read."""
        cycle = self._served
        if cycle is None or not cycle.more_body:
            return False
        self._parting = _Parting(self.transport, self.loop)
        cycle.transport = self._parting  # type: ignore[assignment]
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._parting is not None and self._parting.closed:
            self._parting.drop(data)
            return
        super().data_received(data)
        if self._head_since_s:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_since_s = self.loop.time()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self._limits.head_bytes or len(self.headers) > _MAX_HEADERS:
            self._refusal = self._head_too_large()
            raise _HeadTooLargeError
        self._head_since_s, self._head_bytes = 0.0, 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal)

    def _head_too_large(self) -> ApiError:
        return ApiError(
            431, f"a head may have {self._limits.head_bytes} bytes and {_MAX_HEADERS} header lines"
        )

    def _refuse(self, error: ApiError) -> None:
        """The error as an answer, and the end of the connection."""
        if self.transport.is_closing():
            return
        body = error.body()
        lines = [f"HTTP/1.1 {error.status} Refused".encode()]
        lines += [b"%b: %b" % header for header in error.headers()]
        lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()
        self._abandon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._abandon()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _abandon(self) -> None:
        """Nobody waits for an answer. uvicorn tells the newest request only, which of pipelined ones is not
        the one that is being served."""
        self.pipeline.clear()
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
            if self._wire.on_gone is not None:
                self._wire.on_gone()

    def expire(self, now_s: float) -> None:
        """End the connection if it keeps us waiting for a head."""
        if self._head_since_s and now_s - self._head_since_s > self._limits.head_s:
            self._refuse(ApiError(408, "the request did not arrive in time"))


class Server(uvicorn.Server):
    """uvicorn's, with a deadline for heads."""

    async def on_tick(self, counter: int) -> bool:
        if counter % _SWEEP_TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Protocol):
                    connection.expire(now_s)
        return await super().on_tick(counter)


def make(
    application: object,
    shutdown_s: float,
    limits: Limits | None = None,
    tls: ssl.SSLContext | None = None,
    backlog: int = 2048,
) -> Server:
    """A server for `application`, to be run with `serve(sockets=[...])`."""
    config = uvicorn.Config(
        application,  # type: ignore[arg-type]
        http=functools.partial(Protocol, limits or Limits()),  # type: ignore[arg-type]
        interface="asgi3",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=backlog,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, round(shutdown_s)),
        ssl_context_factory=(lambda config, default: tls) if tls else None,
    )
    return Server(config)


def tls_context(cert: str, key: str | None) -> ssl.SSLContext:
    """For TLS 1.2 and later. Raises OSError or ssl.SSLError where the files are no such pair."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    return context


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket on which a server may listen, once it can serve: until then clients are refused at once rather
    than left waiting. `shared`: others of this user may listen on the port too.

    Raises OSError where somebody else listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
