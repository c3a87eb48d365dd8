"""`/metrics`, `/live` and `/ready` of the planner."""

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest


def _app(missing: Callable[[], str]) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def ready(_: web.Request) -> web.Response:
        why = missing()
        return web.Response(status=503 if why else 200, text=(why or "ready") + "\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/live", live), web.get("/ready", ready)])
    return app


class Http:
    """The server; `missing` says why the planner is not ready, or nothing."""

    def __init__(self, missing: Callable[[], str]) -> None:
        self._runner = web.AppRunner(_app(missing), access_log=None)

    async def start(self, host: str, port: int) -> int:
        """The port it listens on. Raises OSError if it is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        await asyncio.wait_for(self._runner.cleanup(), 5)
