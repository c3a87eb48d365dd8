"""`python -m workers.sim.server`: one simulated engine as an HTTP server."""

import asyncio
import json
import os
import random
import secrets
import signal
import sys
import time
from typing import Any

import msgspec
import uvloop
from aiohttp import web

from ppd.core.engine import Engine, EngineConfig, Request, RequestTooLargeError
from ppd.core.hardware import HardwareError, load_profile
from ppd.core.names import Role
from ppd.runtime import open_files
from workers.facts import ConnectorFacts, write_facts
from workers.sim import metrics, shapes, text
from workers.sim.access import guard
from workers.sim.driver import Driver, Stream
from workers.sim.faults import Faults, changed
from workers.sim.handoff import Handoff, KvParams
from workers.sim.moves import Moves
from workers.sim.peers import READ_PATH, Peers, readable
from workers.sim.request import BadRequestError, Body, ParsedRequest, ask, parse_body, prompts_of
from workers.sim.settings import SimSettings, parse
from workers.sim.writer import StreamWriter

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
        self._rng = random.Random(0)
        self._background: set[asyncio.Task[Any]] = set()

    def app(self) -> web.Application:
        guards = [guard(self.settings.api_key)] if self.settings.api_key else []
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=guards)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completions),
                web.get("/v1/models", self.models),
                web.post("/tokenize", self.tokenize),
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

    # --- generation --------------------------------------------------------------------------------

    async def chat(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, chat=True)

    async def completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, chat=False)

    async def _generate(self, http: web.Request, chat: bool) -> web.StreamResponse:
        if self.faults.delay_s:
            await asyncio.sleep(self.faults.delay_s)
        if status := self.faults.status(self._rng):
            return web.json_response(shapes.error("injected fault", status, "InjectedError"), status=status)
        kv: KvParams | None = None
        try:
            body = parse_body(await http.read())
            kv = body.kv_transfer_params
            self._check_model(body)
            parsed = ask(body, chat, self.max_model_len, self.settings.mean_output_tokens)
            base = http.headers.get("x-request-id") or secrets.token_hex(16)
            request_id = f"{'chatcmpl' if chat else 'cmpl'}-{base}"
            return await self._serve(http, parsed, request_id)
        except (BadRequestError, RequestTooLargeError) as error:
            self._refuse_kv(kv)
            status = error.status if isinstance(error, BadRequestError) else 400
            kind = error.kind if isinstance(error, BadRequestError) else "BadRequestError"
            return web.json_response(shapes.error(str(error), status, kind), status=status)

    def _check_model(self, body: Body) -> None:
        if body.model and body.model != self.settings.model:
            raise BadRequestError(f"The model `{body.model}` does not exist.", 404, "NotFoundError")
        body.model = self.settings.model

    def _refuse_kv(self, kv: KvParams | None) -> None:
        """A request refused before it was admitted: vLLM's D then tells P to free the blocks."""
        if kv is None or not kv.get("do_remote_prefill") or self.handoff.called_off(kv):
            return
        if readable(kv):
            task = asyncio.create_task(self.peers.read(kv, 0, 0))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _serve(self, http: web.Request, parsed: ParsedRequest, request_id: str) -> web.StreamResponse:
        created = int(time.time())
        self.handoff.begins(parsed.body.kv_transfer_params, request_id)
        response: web.StreamResponse | None = None
        writer: StreamWriter | None = None
        if parsed.body.stream:
            response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
            response.enable_chunked_encoding()
            writer = StreamWriter(http, parsed, request_id, created, self.faults)
        streams = [self._stream(parsed, i, request_id, writer) for i in range(len(parsed.answers))]
        started: list[Stream] = []
        try:
            for stream in streams:
                self.driver.submit(stream)
                started.append(stream)
            if response is not None:
                await response.prepare(http)
                assert writer is not None  # noqa: S101
                writer.open()
            for stream in streams:
                await stream.ended.wait()
        finally:
            for stream in started:
                if not stream.ended.is_set():
                    self.driver.abort(stream.request.request_id)
        counts = self._usage(parsed, streams)
        kv, first = parsed.body.kv_transfer_params, streams[0].request
        left = self.handoff.params(first, kv) if kv and first.lease else None
        if kv and left and self.settings.role is Role.DECODE:
            self.moves.hold(kv, left)
        if response is not None and writer is not None:
            writer.close(counts)
            await response.write_eof()
            return response
        body = shapes.whole(parsed, request_id, created, counts, left)
        return web.Response(body=body, content_type="application/json")

    def _stream(
        self, parsed: ParsedRequest, index: int, request_id: str, writer: StreamWriter | None
    ) -> Stream:
        answer = parsed.answers[index]
        kv = parsed.body.kv_transfer_params
        whole = answer.prompt + "".join(answer.tokens)
        request = Request(
            request_id if index == 0 else f"{request_id}-{index}",
            tuple(text.block_keys(whole, self.driver.engine.pool.block_size)),
            text.count(answer.prompt),
            len(answer.tokens),
            pull_tokens=self.handoff.pullable(kv, text.count(answer.prompt)),
            lease=index == 0 and self.handoff.leases(kv),
        )

        async def pull(request: Request) -> bool:
            assert kv is not None  # noqa: S101
            ok = await self.moves.pull(kv, request, self.driver.engine.profile.file.kv_bytes_per_token)
            self.driver.pulled_tokens += request.pulled_tokens if ok else 0
            return ok

        def push(first: int, last: int) -> None:
            if writer is not None:
                writer.tokens(index, first, last)

        return Stream(request, push, pull)

    def _usage(self, parsed: ParsedRequest, streams: list[Stream]) -> dict[str, Any]:
        prompt = sum(text.count(p) for p in parsed.prompts)
        completion = sum(len(a.tokens) for a in parsed.answers)
        first = streams[0].request
        return shapes.usage(prompt, completion, max(first.cached_tokens, 0) + first.pulled_tokens)

    # --- what else an engine answers ---------------------------------------------------------------

    async def models(self, _: web.Request) -> web.Response:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "ppd-sim",
            "root": self.settings.model,
            "parent": None,
            "max_model_len": self.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def tokenize(self, http: web.Request) -> web.Response:
        try:
            body = parse_body(await http.read())
            self._check_model(body)
            pieces = text.pieces(prompts_of(body, chat=body.messages is not None)[0])
        except BadRequestError as error:
            return web.json_response(shapes.error(str(error), error.status, error.kind), status=error.status)
        ids = [text.token_id(piece) for piece in pieces]
        return web.json_response({"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids})

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
        self._rng.seed(faults.seed)
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
