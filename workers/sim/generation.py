"""Requests that make tokens, in any of the APIs."""

import asyncio
import random
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol

import xxhash
from aiohttp import web

from ppd.core.engine import Request, RequestTooLargeError
from ppd.core.names import Role
from workers.sim import shapes, text
from workers.sim.driver import Driver, EngineStream
from workers.sim.faults import Faults
from workers.sim.handoff import Handoff, KvParams
from workers.sim.moves import Moves
from workers.sim.names import Names
from workers.sim.peers import Peers, readable
from workers.sim.request import BadRequestError, Body, ParsedRequest, ask
from workers.sim.settings import SimSettings
from workers.sim.shapes import ApiShape
from workers.sim.writer import StreamWriter


class Api(ApiShape, Protocol):
    """One API: how its requests are read, and what its answers look like."""

    prefix: str  # of an answer's id

    @property
    def chat(self) -> bool: ...

    def read(self, data: bytes) -> Body:
        """Raises BadRequestError."""


class Generation:
    """Answers by the engine model."""

    def __init__(
        self,
        settings: SimSettings,
        driver: Driver,
        handoff: Handoff,
        moves: Moves,
        peers: Peers,
        faults: Faults,
        names: Names,
        max_model_len: int,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._handoff = handoff
        self._moves = moves
        self._peers = peers
        self._faults = faults
        self._names = names
        self._max_model_len = max_model_len
        self.rng = random.Random(0)
        self._background: set[asyncio.Task[Any]] = set()

    def handler(self, api: Api) -> Callable[[web.Request], Any]:
        """Of the API's endpoint."""

        async def handle(http: web.Request) -> web.StreamResponse:
            return await self._generate(http, api)

        return handle

    async def _generate(self, http: web.Request, api: Api) -> web.StreamResponse:
        if self._faults.delay_s:
            await asyncio.sleep(self._faults.delay_s)
        if status := self._faults.status(self.rng):
            return web.json_response(api.error("injected fault", status, "InjectedError"), status=status)
        kv: KvParams | None = None
        try:
            body = api.read(await http.read())
            kv = body.kv_transfer_params
            body.model = self._names.check(body.model)
            parsed = ask(body, api.chat, self._max_model_len, self._settings.mean_output_tokens)
            base = http.headers.get("x-request-id") or secrets.token_hex(16)
            return await self._serve(http, parsed, api, api.prefix + base)
        except (BadRequestError, RequestTooLargeError) as error:
            self._refuse_kv(kv)
            status = error.status if isinstance(error, BadRequestError) else 400
            kind = error.kind if isinstance(error, BadRequestError) else "BadRequestError"
            return web.json_response(api.error(str(error), status, kind), status=status)

    def _refuse_kv(self, kv: KvParams | None) -> None:
        """A request refused before it was admitted: vLLM's D then tells P to free the blocks."""
        if kv is None or not kv.get("do_remote_prefill") or self._handoff.called_off(kv):
            return
        if readable(kv):
            task = asyncio.create_task(self._peers.read(kv, 0, 0))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _serve(
        self, http: web.Request, parsed: ParsedRequest, shape: ApiShape, request_id: str
    ) -> web.StreamResponse:
        created = int(time.time())
        self._handoff.begins(parsed.body.kv_transfer_params, request_id)
        response: web.StreamResponse | None = None
        writer: StreamWriter | None = None
        if parsed.body.stream:
            response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
            response.enable_chunked_encoding()
            writer = StreamWriter(http, parsed, shape, request_id, created, self._faults)
        streams = [self._stream(parsed, i, request_id, writer) for i in range(len(parsed.answers))]
        started: list[EngineStream] = []
        try:
            for stream in streams:
                self._driver.submit(stream)
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
                    self._driver.abort(stream.request.request_id)
        counts = self._usage(parsed, streams)
        kv, first = parsed.body.kv_transfer_params, streams[0].request
        left = self._handoff.params(first, kv) if kv and first.lease else None
        if kv and left and self._settings.role is Role.DECODE:
            self._moves.hold(kv, left)
        if response is not None and writer is not None:
            writer.close(counts)
            await response.write_eof()
            return response
        body = shape.whole(parsed, request_id, created, counts, left)
        return web.Response(body=body, content_type="application/json")

    def _stream(
        self, parsed: ParsedRequest, index: int, request_id: str, writer: StreamWriter | None
    ) -> EngineStream:
        answer = parsed.answers[index]
        kv = parsed.body.kv_transfer_params
        whole = answer.prompt + "".join(answer.tokens)
        keys = text.block_keys(whole, self._driver.engine.pool.block_size)
        if adapter := self._names.adapter(parsed.body.model):  # its KV is not the model's
            keys = (xxhash.xxh64_intdigest(f"{adapter}:{key}".encode()) for key in keys)
        request = Request(
            request_id if index == 0 else f"{request_id}-{index}",
            tuple(keys),
            text.count(answer.prompt),
            len(answer.tokens),
            pull_tokens=self._handoff.pullable(kv, text.count(answer.prompt)),
            lease=index == 0 and self._handoff.leases(kv),
        )

        async def pull(request: Request) -> bool:
            assert kv is not None  # noqa: S101
            ok = await self._moves.pull(kv, request, self._driver.engine.profile.file.kv_bytes_per_token)
            self._driver.pulled_tokens += request.pulled_tokens if ok else 0
            return ok

        def push(first: int, last: int) -> None:
            if writer is not None:
                writer.tokens(index, first, last)

        return EngineStream(request, push, pull)

    def _usage(self, parsed: ParsedRequest, streams: list[EngineStream]) -> dict[str, Any]:
        prompt = sum(text.count(p) for p in parsed.prompts)
        completion = sum(len(a.tokens) for a in parsed.answers)
        first = streams[0].request
        return shapes.usage(prompt, completion, max(first.cached_tokens, 0) + first.pulled_tokens)
