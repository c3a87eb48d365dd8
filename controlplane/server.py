"""The HTTP server: uvicorn, with the wire handed to the application.

A streamed chunk then goes from the engine's reading callback to the client's socket without waking a task,
which halves its CPU. Everything else, heads and ends included, goes by ASGI.
"""

import asyncio
import socket

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

WIRE = "ppd.wire"


class Wire:
    """The client's connection, for chunks of a chunked answer whose head was sent by ASGI."""

    __slots__ = ("_flow", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    def write(self, data: bytes) -> bool:
        """Send one chunk; False = the client lags: wait for `drained` before the next one."""
        if self._transport.is_closing():
            return True
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not self._flow.write_paused

    async def drained(self) -> None:
        await self._flow.drain()


class Protocol(HttpToolsProtocol):
    """uvicorn's, with the wire among the scope's extensions."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._extensions = {WIRE: Wire(transport, self.flow)}

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]


def make(application: object, shutdown_s: float, backlog: int = 2048) -> uvicorn.Server:
    """A server for `application`, to be run with `serve(sockets=[...])`."""
    return uvicorn.Server(
        uvicorn.Config(
            application,  # type: ignore[arg-type]
            http=Protocol,
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
        )
    )


def listen(host: str, port: int, backlog: int = 2048) -> socket.socket:
    """A listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
