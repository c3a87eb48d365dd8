"""The HTTP server of one process: it listens, sweeps its connections, and ends cleanly."""

import asyncio
import logging
import socket
import ssl

from controlplane.http.client_connection import ClientConnection
from controlplane.http.context import Application, Limits, OpenConnection
from controlplane.http.exchange import Exchange

_SWEEP_S = 0.5
_FLUSH_S = 1.0  # how long clients may take to read the error that ends their answer
_CANCELLED_S = 5.0  # how long cancelled tasks may take to end


class Server:
    """Serves an application on sockets that listen, until it is stopped."""

    def __init__(
        self,
        application: Application,
        shutdown_s: float,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        backlog: int = 2048,
    ) -> None:
        self.application = application
        self.limits = limits or Limits()
        self.connections: set[OpenConnection] = set()
        self.serving: set[Exchange] = set()
        self.stopping = False
        self._shutdown_s = shutdown_s
        self._tls = tls
        self._backlog = backlog
        self.started = asyncio.Event()
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._log = logging.getLogger(__name__)

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Until `stop`, and then until running exchanges have ended, at most `shutdown_s`.

        Raises OSError where somebody else has come to listen there.
        """
        loop = asyncio.get_running_loop()
        listening = [
            await loop.create_server(
                lambda: ClientConnection(self, loop),
                sock=each,
                ssl=self._tls,
                backlog=self._backlog,
                ssl_handshake_timeout=self.limits.head_s if self._tls else None,
            )
            for each in sockets
        ]
        self.started.set()
        sweeper = loop.create_task(self._sweep())
        try:
            await self._stop.wait()
        finally:
            for each in listening:
                each.close()
            await self._end()
            sweeper.cancel()

    def stop(self) -> None:
        """Take no more requests; asked for a second time, wait for none either."""
        if self._stop.is_set():
            self._at_once.set()
        self._stop.set()

    def failed(self, exchange: Exchange, error: Exception) -> None:
        self._log.error("%s %s", exchange.request.method, exchange.request.path[:200], exc_info=error)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = loop.time()
            for connection in list(self.connections):
                connection.sweep(now_s)

    async def _closed(self, at_most_s: float) -> None:
        """Until every client has read the error that ended its answer."""
        until_s = asyncio.get_running_loop().time() + at_most_s
        while self.connections and asyncio.get_running_loop().time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def _end(self) -> None:
        self.stopping = True
        for connection in list(self.connections):
            connection.stop()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._shutdown_s
        while (self.serving or self.connections) and loop.time() < until_s:
            if self._at_once.is_set():
                break
            await asyncio.sleep(0.02)
        left = [exchange.task for exchange in self.serving if exchange.task is not None]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CANCELLED_S)
            await self._closed(_FLUSH_S)
        for connection in list(self.connections):
            connection.abort()


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
