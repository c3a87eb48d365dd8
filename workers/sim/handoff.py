"""The NIXL handshake as vLLM's connector speaks it, and the source's side of a read."""

import asyncio
import time
from typing import Any

import msgspec
from aiohttp import web

from ppd.core.engine import Engine, Link, Port, Request
from ppd.core.names import KV_HOLD, KV_RELEASE, KV_REQUEST_ID, Role
from workers.connector.transfers import WORKER_ID
from workers.sim.driver import Driver
from workers.sim.faults import Faults
from workers.sim.peers import readable
from workers.sim.settings import SimSettings

KvParams = dict[str, Any]
_REMEMBERED = 8192


class Handoff:
    """One engine's part in passing KV on."""

    def __init__(self, settings: SimSettings, driver: Driver, engine_id: str, port: int) -> None:
        profile = driver.engine.profile.file
        self.engine_id = engine_id
        self._settings = settings
        self._driver = driver
        self._address = (settings.advertise_host or settings.host, port)
        self._kv_bytes_per_token = profile.kv_bytes_per_token
        bytes_per_s = settings.link_gb_per_s * 1e9 or profile.link_bytes_per_s
        self._link = Link(bytes_per_s, settings.setup_ms * 1e-3)
        self._egress = Port()
        self._prefills: dict[str, str] = {}  # recent ones: the frontend's turn id -> our request id

    def begins(self, params: KvParams | None, request_id: str) -> None:
        """A request comes in: if it is a turn's prefill, that turn may later be called off."""
        if params and params.get("do_remote_decode") and (turn := params.get(KV_REQUEST_ID)):
            self._prefills[str(turn)] = request_id
            if len(self._prefills) > _REMEMBERED:
                del self._prefills[next(iter(self._prefills))]

    def called_off(self, params: KvParams) -> bool:
        """Whether these say that nobody will read what is prefilled for a turn; it is stopped, or freed."""
        turn = params.get(KV_RELEASE)
        if turn:
            self._driver.abort(self._prefills.pop(str(turn), ""))
        return bool(turn)

    def leases(self, params: KvParams | None) -> bool:
        """Whether a request with these parameters keeps its blocks after its end: as with the project's
        connector, D does where it is asked to hold them."""
        if not params or self._settings.role is Role.REPLICA:
            return False
        return bool(params.get("do_remote_decode") or (params.get(KV_HOLD) and self._settings.pullback))

    def pullable(self, params: KvParams | None, prompt_tokens: int) -> int:
        """Of a prompt, the tokens that can be read from another engine."""
        if params is None or not readable(params):
            return 0
        if params.get("do_remote_prefill"):
            return prompt_tokens
        return min(int(params.get("remote_num_tokens") or 0), prompt_tokens)

    def params(self, request: Request, asked: KvParams) -> KvParams:
        """What the answer says of the blocks that it left behind."""
        engine: Engine = self._driver.engine
        prefill = bool(asked.get("do_remote_decode"))
        size = engine.pool.block_size
        tokens = request.prompt_tokens + request.output_tokens - 1
        host, port = self._address
        return {
            "do_remote_prefill": prefill,
            "do_remote_decode": not prefill,
            "remote_block_ids": [list(range(1, -(-tokens // size) + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None if prefill else time.perf_counter() + engine.config.lease_s,
            "transfer_mode": "pull",
            WORKER_ID: self._settings.worker_id,
        }

    async def serve_read(self, data: bytes, faults: Faults) -> web.Response:
        """Another engine reads blocks that are leased here: answer when the last byte would have left."""
        try:
            read = msgspec.json.decode(data, type=_Read)
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=str(error))
        if faults.kv_hang:
            await asyncio.sleep(3600)
        if faults.kv_fail or read.engine_id != self.engine_id:
            return web.Response(status=409, text="no such engine or blocks")
        if not self._driver.engine.renew(read.request_id, self._driver.now_s()):
            return web.Response(status=404, text="these blocks are gone")
        if read.tokens:
            now_s = time.monotonic()
            n_bytes = int(read.tokens * self._kv_bytes_per_token * faults.kv_slow)
            await asyncio.sleep(self._link.transfer(self._egress, Port(), n_bytes, now_s) - now_s)
        self._driver.release(read.request_id)
        return web.Response()


class _Read(msgspec.Struct):
    request_id: str
    engine_id: str
    tokens: int
