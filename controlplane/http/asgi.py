"""An ASGI application behind the server, which calls it as soon as the head is there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from controlplane.errors import ApiError
from controlplane.http.exchange import Exchange

Application = Callable[[Any, Any, Any], Awaitable[None]]


class Asgi:
    """Serves exchanges by an ASGI application, which gets each body in one piece."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def judge(self, exchange: Exchange) -> ApiError | None:
        exchange.request.eager = True
        return None

    def lost(self, exchange: Exchange) -> None:
        pass

    async def __call__(self, exchange: Exchange) -> None:
        bridge = _Bridge(exchange)
        await self._application(_scope(exchange), bridge.receive, bridge.send)


def _scope(exchange: Exchange) -> dict[str, Any]:
    request = exchange.request
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET" if request.method == "HEAD" else request.method,  # the server leaves the body out
        "scheme": "https" if exchange.secure else "http",
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query,
        "root_path": "",
        "headers": request.raw_headers,
        "client": exchange.peer,
        "server": None,
    }


class _Bridge:
    """ASGI's `receive` and `send` of one exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._waited = False  # for the request to arrive
        self._delivered = False  # the body, to the application
        self._gone: asyncio.Future[None] | None = None
        self._start: Any = None  # the message with the head, until the first bytes of the body

    async def receive(self) -> Any:
        exchange = self._exchange
        if not self._waited:
            self._waited = True
            await exchange.request.whole()
        if not self._delivered and exchange.request.arrived:
            self._delivered = True
            return {"type": "http.request", "body": exchange.request.body, "more_body": False}
        if not (exchange.gone or exchange.response.finished):
            self._gone = asyncio.get_running_loop().create_future()
            exchange.on_gone = self._hung_up
            await self._gone
        return {"type": "http.disconnect"}

    def _hung_up(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def send(self, message: Any) -> None:
        response = self._exchange.response
        if message["type"] == "http.response.start":
            self._start = message
            return
        data, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            headers = [header for header in start["headers"] if header[0] != b"content-length"]
            lengths = [int(value) for name, value in start["headers"] if name == b"content-length"]
            if not more:
                response.send(start["status"], headers, data)
                return
            response.start(start["status"], headers, lengths[0] if lengths else None)
        if not more:
            response.end(data)
        elif data and not response.push(data):
            await self._exchange.drained()
