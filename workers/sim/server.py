"""`python -m workers.sim.server`: one simulated engine as an HTTP server, put together."""

import asyncio
import json
import secrets
import signal
import sys

import uvloop
from aiohttp import web

from ppd.core.engine import Engine, EngineConfig
from ppd.core.hardware import HardwareError, load_profile
from ppd.core.names import Role
from ppd.runtime import open_files
from workers.facts import ConnectorFacts, write_facts
from workers.sim import shapes
from workers.sim.access import guard
from workers.sim.control import Control
from workers.sim.driver import Driver
from workers.sim.faults import Faults
from workers.sim.generation import Generation
from workers.sim.handoff import Handoff
from workers.sim.messages import Messages
from workers.sim.model_routes import ModelRoutes
from workers.sim.moves import Moves
from workers.sim.names import Names
from workers.sim.peers import READ_PATH, Peers
from workers.sim.responses import Responses
from workers.sim.settings import SimSettings, parse
from workers.sim.shapes import OpenAi
from workers.sim.state_routes import StateRoutes

_MAX_BODY_BYTES = 64 << 20
_OPEN_FILES = 65_536  # one each stream


class SimServer:
    """One engine put together, and its life: it listens, makes steps, and ends."""

    def __init__(self, settings: SimSettings, engine: Engine) -> None:
        self._settings = settings
        self.driver = Driver(engine, settings.speed)
        self.peers = Peers()
        self._faults = Faults()
        self.handoff = Handoff(settings, self.driver, secrets.token_hex(8), settings.port)
        self.moves = Moves(settings, self.handoff.engine_id, self.peers, engine.pool.block_size)
        max_model_len = settings.max_model_len or engine.profile.file.max_model_len_tokens
        names = Names(settings.model, settings.served_model_name, max_model_len)
        messages, responses = Messages(), Responses()
        generation = Generation(
            settings,
            self.driver,
            self.handoff,
            self.moves,
            self.peers,
            self._faults,
            names,
            max_model_len,
        )
        self._routes = [
            web.post("/v1/chat/completions", generation.handler(OpenAi(chat=True))),
            web.post("/v1/completions", generation.handler(OpenAi(chat=False))),
            web.post("/v1/messages", generation.handler(messages)),
            web.post("/v1/responses", generation.handler(responses)),
            web.post("/inference/v1/abort_requests", self._abort_requests),
            web.post(READ_PATH, self._kv_read),
            *ModelRoutes(names, messages, responses, max_model_len).routes(),
            *StateRoutes(settings.model, self.driver, self.peers, self._faults).routes(),
            *Control(self._faults, self.driver, generation).routes(),
        ]

    def app(self) -> web.Application:
        guards = [guard(self._settings.api_key)] if self._settings.api_key else []
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=guards)
        app.add_routes(self._routes)
        return app

    async def _abort_requests(self, http: web.Request) -> web.Response:
        try:
            ids = json.loads(await http.read())["request_ids"]
        except (ValueError, KeyError, TypeError):
            return web.json_response(shapes.error("Missing 'request_ids' in request body", 400), status=400)
        for request_id in ids:
            self.driver.abort(str(request_id))
        return web.Response()

    async def _kv_read(self, http: web.Request) -> web.Response:
        return await self.handoff.serve_read(await http.read(), self._faults)

    async def serve(self) -> None:
        settings = self._settings
        runner = web.AppRunner(self.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, settings.host, settings.port, backlog=4096).start()
        if settings.run_dir is not None and settings.role is not Role.REPLICA:
            write_facts(settings.run_dir, self._facts())
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, over.set)
        stepping = asyncio.create_task(self.driver.run())
        ended = asyncio.create_task(over.wait())
        await asyncio.wait({stepping, ended}, return_when=asyncio.FIRST_COMPLETED)
        if stepping.done():
            stepping.result()  # a fault of the model itself: die loudly
        stepping.cancel()
        await runner.cleanup()
        await self.close()

    async def close(self) -> None:
        await self.peers.close()
        await asyncio.to_thread(self.moves.close)

    def _facts(self) -> ConnectorFacts:
        settings, config = self._settings, self.driver.engine.config
        return ConnectorFacts(
            worker_id=settings.worker_id,
            engine_id=self.handoff.engine_id,
            connector="SimConnector",
            side_channel_host=settings.advertise_host or settings.host,
            side_channel_port=settings.port,
            block_size_tokens=config.block_size_tokens,
            kv_bytes_per_token=self.driver.engine.profile.file.kv_bytes_per_token,
            kv_capacity_tokens=config.kv_capacity_tokens,
            kv_layout="HND",
            dtype="bfloat16",
            tensor_parallel=1,
            max_batch_tokens=config.max_batch_tokens,
            bidirectional=settings.pullback,
            releases=settings.role is Role.PREFILL,
        )


def build_engine(settings: SimSettings) -> Engine:
    """Raises HardwareError for an unknown profile, ValueError for limits that cannot be."""
    profile = load_profile(settings.hardware)
    changes: dict[str, float] = {
        "lease_s": settings.lease_s if settings.role is Role.PREFILL else settings.hold_s,
    }
    for name, value in (
        ("block_size_tokens", settings.block_size),
        ("kv_capacity_tokens", settings.kv_capacity),
        ("max_batch_tokens", settings.max_batch_tokens),
    ):
        if value:
            changes[name] = value
    # One step at a time: each token leaves when it is there.
    return Engine(profile, EngineConfig.for_profile(profile, **changes), max_run_steps=1)


async def _main(settings: SimSettings, engine: Engine) -> None:
    await SimServer(settings, engine).serve()


def main(argv: list[str] | None = None) -> int:
    settings = parse(sys.argv[1:] if argv is None else argv)
    try:
        engine = build_engine(settings)
    except (HardwareError, ValueError) as error:
        print(f"workers.sim.server: {error}", file=sys.stderr)  # noqa: T201
        return 2
    open_files.allow(_OPEN_FILES)
    uvloop.run(_main(settings, engine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
