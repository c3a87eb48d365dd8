"""What an engine reports of itself: health, metrics, load, version."""

import asyncio

from aiohttp import web

from workers.sim import metrics
from workers.sim.driver import Driver
from workers.sim.faults import Faults
from workers.sim.peers import Peers

VERSION = "sim-1"
_HANG_S = 3600.0  # longer than any client waits


class StateRoutes:
    """Routes that only read the engine's state."""

    def __init__(self, model: str, driver: Driver, peers: Peers, faults: Faults) -> None:
        self._model = model
        self._driver = driver
        self._peers = peers
        self._faults = faults

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self.health),
            web.get("/metrics", self.metrics),
            web.get("/metrics/", self.metrics),
            web.get("/load", self.load),
            web.get("/version", self.version),
        ]

    async def health(self, _: web.Request) -> web.Response:
        await self._maybe_hang()
        return web.Response()

    async def metrics(self, http: web.Request) -> web.Response:
        await self._maybe_hang()
        only = frozenset(http.query.getall("name[]", []))
        return web.Response(text=metrics.page(self._model, self._driver, self._peers, only))

    async def load(self, _: web.Request) -> web.Response:
        return web.json_response({"server_load": self._driver.engine.running + self._driver.engine.waiting})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _maybe_hang(self) -> None:
        if self._faults.hang_health:
            await asyncio.sleep(_HANG_S)
