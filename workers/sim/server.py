"""`python -m workers.sim.server`: one simulated engine as an HTTP server."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvloop
from aiohttp import web

from ppd.core.engine import Engine, EngineConfig
from ppd.core.hardware import HardwareError, load_profile
from ppd.core.names import Role
from ppd.runtime import open_files
from workers.facts import ConnectorFacts, write_facts
from workers.sim import metrics, shapes, text
from workers.sim.access import guard
from workers.sim.driver import Driver
from workers.sim.faults import Faults, changed
from workers.sim.generation import Generation
from workers.sim.handoff import Handoff
from workers.sim.messages import Messages
from workers.sim.moves import Moves
from workers.sim.names import Names
from workers.sim.peers import READ_PATH, Peers
from workers.sim.request import BadRequestError, Body, parse_as, prompts_of
from workers.sim.responses import Responses
from workers.sim.settings import SimSettings, parse
from workers.sim.shapes import OpenAi, Shape

VERSION = "sim-1"
_MAX_BODY_BYTES = 64 << 20
_OPEN_FILES = 65_536  # one each stream


class SimServer:
    """The HTTP surface, on one event loop."""

    def __init__(self, settings: SimSettings, engine: Engine) -> None:
        self.settings = settings
        self.driver = Driver(engine, settings.speed)
        self.peers = Peers()
        self.faults = Faults()
        self.handoff = Handoff(settings, self.driver, secrets.token_hex(8), settings.port)
        self.moves = Moves(settings, self.handoff.engine_id, self.peers, engine.pool.block_size)
        self.max_model_len = settings.max_model_len or engine.profile.file.max_model_len_tokens
        self.names = Names(settings.model, settings.served_model_name, self.max_model_len)
        self.messages = Messages()
        self.responses = Responses()
        self.generation = Generation(
            settings,
            self.driver,
            self.handoff,
            self.moves,
            self.peers,
            self.faults,
            self.names,
            self.max_model_len,
        )

    def app(self) -> web.Application:
        guards = [guard(self.settings.api_key)] if self.settings.api_key else []
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=guards)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.generation.handler(OpenAi(chat=True))),
                web.post("/v1/completions", self.generation.handler(OpenAi(chat=False))),
                web.post("/v1/messages", self.generation.handler(self.messages)),
                web.post("/v1/messages/count_tokens", self.count_tokens),
                web.post("/v1/responses", self.generation.handler(self.responses)),
                web.get("/v1/responses/{id}", self._kept(self.responses.get)),
                web.delete("/v1/responses/{id}", self._kept(self.responses.delete)),
                web.post("/v1/responses/{id}/cancel", self._kept(self.responses.cancel)),
                web.get("/v1/responses/{id}/input_items", self._kept(self.responses.input_items)),
                web.get("/v1/models", self.models),
                web.post("/v1/load_lora_adapter", self._adapters(self.names.load)),
                web.post("/v1/unload_lora_adapter", self._adapters(self.names.unload)),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
                web.get("/metrics/", self.metrics),
                web.get("/load", self.load),
                web.get("/version", self.version),
                web.post("/inference/v1/abort_requests", self.abort_requests),
                web.post(READ_PATH, self.kv_read),
                web.get("/sim/faults", self.show_faults),
                web.post("/sim/faults", self.set_faults),
                web.delete("/sim/faults", self.clear_faults),
                web.post("/sim/evict", self.evict),
                web.post("/sim/crash", self.crash),
            ]
        )
        return app

    # --- what else an engine answers ---------------------------------------------------------------

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.names.listed()})

    @staticmethod
    def _adapters(change: Callable[[Any], str]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(http: web.Request) -> web.Response:
            try:
                return web.Response(text=change(json.loads(await http.read())))
            except ValueError as error:
                return _refusal(OpenAi(chat=True), BadRequestError(str(error)))
            except BadRequestError as error:
                return _refusal(OpenAi(chat=True), error)

        return handle

    def _kept(self, act: Callable[[str], dict[str, Any]]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(http: web.Request) -> web.Response:
            try:
                return web.json_response(act(http.match_info["id"]))
            except BadRequestError as error:
                return _refusal(self.responses, error)

        return handle

    async def tokenize(self, http: web.Request) -> web.Response:
        try:
            pieces = text.pieces(self._prompt(parse_as(await http.read(), Body)))
        except BadRequestError as error:
            return _refusal(OpenAi(chat=True), error)
        ids = [text.token_id(piece) for piece in pieces]
        return web.json_response({"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids})

    async def detokenize(self, http: web.Request) -> web.Response:
        try:
            asked = parse_as(await http.read(), _Tokens)
            self.names.check(asked.model)
        except BadRequestError as error:
            return _refusal(OpenAi(chat=True), error)
        return web.json_response({"prompt": text.from_ids(asked.tokens)})

    async def count_tokens(self, http: web.Request) -> web.Response:
        try:
            count = text.count(self._prompt(self.messages.read(await http.read())))
        except BadRequestError as error:
            return _refusal(self.messages, error)
        return web.json_response({"input_tokens": count})

    def _prompt(self, body: Body) -> str:
        """Raises BadRequestError."""
        self.names.check(body.model)
        return prompts_of(body, chat=body.messages is not None)[0]

    async def health(self, _: web.Request) -> web.Response:
        await self._maybe_hang()
        return web.Response()

    async def metrics(self, http: web.Request) -> web.Response:
        await self._maybe_hang()
        only = frozenset(http.query.getall("name[]", []))
        return web.Response(text=metrics.page(self.settings.model, self.driver, self.peers, only))

    async def load(self, _: web.Request) -> web.Response:
        return web.json_response({"server_load": self.driver.engine.running + self.driver.engine.waiting})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def abort_requests(self, http: web.Request) -> web.Response:
        try:
            ids = json.loads(await http.read())["request_ids"]
        except (ValueError, KeyError, TypeError):
            return web.json_response(shapes.error("Missing 'request_ids' in request body", 400), status=400)
        for request_id in ids:
            self.driver.abort(str(request_id))
        return web.Response()

    async def kv_read(self, http: web.Request) -> web.Response:
        return await self.handoff.serve_read(await http.read(), self.faults)

    async def _maybe_hang(self) -> None:
        if self.faults.hang_health:
            await asyncio.sleep(3600)

    # --- faults ------------------------------------------------------------------------------------

    async def show_faults(self, _: web.Request) -> web.Response:
        return web.json_response(msgspec.to_builtins(self.faults))

    async def set_faults(self, http: web.Request) -> web.Response:
        try:
            faults = changed(self.faults, json.loads(await http.read()))
        except ValueError as error:
            return web.json_response(shapes.error(str(error), 400), status=400)
        return self._use(faults)

    async def clear_faults(self, _: web.Request) -> web.Response:
        return self._use(Faults())

    def _use(self, faults: Faults) -> web.Response:
        for name in Faults.__struct_fields__:  # streams under way hold on to this very object
            setattr(self.faults, name, getattr(faults, name))
        self.generation.rng.seed(faults.seed)
        self.driver.stalled = faults.stalled
        return web.json_response(msgspec.to_builtins(self.faults))

    async def evict(self, http: web.Request) -> web.Response:
        """Forget idle KV: `?blocks=N`, or all."""
        pool = self.driver.engine.pool
        return web.json_response({"evicted": pool.evict(int(http.query.get("blocks", pool.idle)))})

    async def crash(self, _: web.Request) -> web.Response:
        os.kill(os.getpid(), signal.SIGKILL)
        return web.Response()

    # --- life --------------------------------------------------------------------------------------

    async def serve(self) -> None:
        settings = self.settings
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
        settings, config = self.settings, self.driver.engine.config
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


class _Tokens(msgspec.Struct):
    tokens: list[int]
    model: str = ""


def _refusal(shape: Shape, error: BadRequestError) -> web.Response:
    return web.json_response(shape.error(str(error), error.status, error.kind), status=error.status)


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
