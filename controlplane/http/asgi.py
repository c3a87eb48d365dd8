"""An ASGI application behind the server: asked as soon as the head is there, it gets the body whole."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from controlplane.errors import ApiError
from controlplane.http.exchange import Exchange

Application = Callable[[Any, Any, Any], Awaitable[None]]


class Asgi:
    """Serves exchanges by an ASGI application."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def judge(self, exchange: Exchange) -> ApiError | None:
        exchange.eager = True
        return None

    def lost(self, exchange: Exchange) -> None:
        pass

    async def __call__(self, exchange: Exchange) -> None:
        bridge = _Bridge(exchange)
        await self._application(_scope(exchange), bridge.receive, bridge.send)


def _scope(exchange: Exchange) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET" if exchange.method == "HEAD" else exchange.method,  # the server sends no body for it
        "scheme": "https" if exchange.secure else "http",
        "path": exchange.path,
        "raw_path": exchange.raw_path,
        "query_string": exchange.query,
        "root_path": "",
        "headers": exchange.raw_headers,
        "client": exchange.peer,
        "server": None,
    }


class _Bridge:
    """One exchange as ASGI sees it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._asked = self._told = False
        self._gone: asyncio.Future[None] | None = None
        self._start: Any = None

    async def receive(self) -> Any:
        if not self._asked:
            self._asked = True
            await self._exchange.whole()
        if not self._told and self._exchange.arrived:
            self._told = True
            return {"type": "http.request", "body": self._exchange.body, "more_body": False}
        if not (self._exchange.gone or self._exchange.finished):
            self._gone = asyncio.get_running_loop().create_future()
            self._exchange.on_gone = self._hung_up
            await self._gone
        return {"type": "http.disconnect"}

    def _hung_up(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def send(self, message: Any) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            self._start = message
            return
        data, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            headers = [header for header in start["headers"] if header[0] != b"content-length"]
            lengths = [int(value) for name, value in start["headers"] if name == b"content-length"]
            if not more:
                exchange.answer(start["status"], headers, data)
                return
            exchange.start(start["status"], headers, lengths[0] if lengths else None)
        if not more:
            exchange.end(data)
        elif data and not exchange.push(data):
            await exchange.drained()
