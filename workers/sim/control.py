"""What a test does to a simulated engine over HTTP: faults, eviction, death."""

import json
import os
import signal

import msgspec
from aiohttp import web

from workers.sim import shapes
from workers.sim.driver import Driver
from workers.sim.faults import Faults, changed
from workers.sim.generation import Generation


class Control:
    """Routes under `/sim`, which no real engine has."""

    def __init__(self, faults: Faults, driver: Driver, generation: Generation) -> None:
        self._faults = faults
        self._driver = driver
        self._generation = generation

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/sim/faults", self.show_faults),
            web.post("/sim/faults", self.set_faults),
            web.delete("/sim/faults", self.clear_faults),
            web.post("/sim/evict", self.evict),
            web.post("/sim/crash", self.crash),
        ]

    async def show_faults(self, _: web.Request) -> web.Response:
        return web.json_response(msgspec.to_builtins(self._faults))

    async def set_faults(self, http: web.Request) -> web.Response:
        try:
            faults = changed(self._faults, json.loads(await http.read()))
        except ValueError as error:
            return web.json_response(shapes.error(str(error), 400), status=400)
        return self._use(faults)

    async def clear_faults(self, _: web.Request) -> web.Response:
        return self._use(Faults())

    def _use(self, faults: Faults) -> web.Response:
        for name in Faults.__struct_fields__:  # streams under way hold on to this very object
            setattr(self._faults, name, getattr(faults, name))
        self._generation.rng.seed(faults.seed)
        self._driver.stalled = faults.stalled
        return web.json_response(msgspec.to_builtins(self._faults))

    async def evict(self, http: web.Request) -> web.Response:
        """Forget idle KV: `?blocks=N`, or all."""
        pool = self._driver.engine.pool
        return web.json_response({"evicted": pool.evict(int(http.query.get("blocks", pool.idle)))})

    async def crash(self, _: web.Request) -> web.Response:
        os.kill(os.getpid(), signal.SIGKILL)
        return web.Response()
