"""Two engines behind vLLM's HTTP surface, asked directly: no frontend, no policy."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

_TIMEOUT_S = 120.0


class EngineAnswer(msgspec.Struct, frozen=True):
    """One request's times on this machine's monotonic clock, and what came of it."""

    sent_s: float
    first_s: float
    end_s: float
    tokens: list[int]  # of the answer; empty where the engine does not tell them
    kv: dict[str, Any] | None = None  # what another engine needs to read its blocks

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.sent_s


class EngineError(RuntimeError):
    """An engine that refused, or whose answer cannot be used."""


class Engines:
    """A prefill and a decode engine that can exchange KV.

    Every request raises EngineError, aiohttp.ClientError or TimeoutError.
    """

    def __init__(self, session: aiohttp.ClientSession, prefill: str, decode: str) -> None:
        self._session = session
        self.prefill = prefill.rstrip("/")
        self.decode = decode.rstrip("/")
        self._models: dict[str, str] = {}

    async def model(self, url: str) -> str:
        if url not in self._models:
            async with self._session.get(f"{url}/v1/models", timeout=_timeout()) as reply:
                self._models[url] = (await reply.json())["data"][0]["id"]
        return self._models[url]

    async def stream(
        self, url: str, prompt: Sequence[int], n_out: int, kv: Mapping[str, Any] | None = None
    ) -> EngineAnswer:
        """`n_out` tokens, as they come."""
        body = await self._body(url, prompt, n_out, kv) | {"stream": True}
        sent_s = time.monotonic()
        first_s = end_s = 0.0
        tokens: list[int] = []
        async with self._session.post(f"{url}/v1/completions", json=body, timeout=_timeout()) as reply:
            if reply.status != 200:
                raise EngineError(f"{url}: HTTP {reply.status}: {(await reply.text())[:300]}")
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                end_s = time.monotonic()
                first_s = first_s or end_s
                for choice in json.loads(line[6:])["choices"]:
                    tokens += choice.get("token_ids") or ()
        if not first_s:
            raise EngineError(f"{url}: a stream without a token")
        return EngineAnswer(sent_s, first_s, end_s, tokens)

    async def prefilled(self, prompt: Sequence[int]) -> EngineAnswer:
        """The first leg of a hand-off."""
        kv = {"do_remote_decode": True, "do_remote_prefill": False}
        body = await self._body(self.prefill, prompt, 1, kv)
        sent_s = time.monotonic()
        async with self._session.post(
            f"{self.prefill}/v1/completions", json=body, timeout=_timeout()
        ) as reply:
            if reply.status != 200:
                raise EngineError(f"{self.prefill}: HTTP {reply.status}: {(await reply.text())[:300]}")
            found = await reply.json()
        end_s = time.monotonic()
        if not found.get("kv_transfer_params"):
            raise EngineError(f"{self.prefill}: it left no KV parameters: is it a prefill engine?")
        return EngineAnswer(sent_s, end_s, end_s, [], found["kv_transfer_params"])

    async def handed_off(self, prompt: Sequence[int], n_out: int) -> EngineAnswer:
        """Prefill, then decode with its KV: timed from the first leg's start."""
        first = await self.prefilled(prompt)
        second = await self.stream(self.decode, prompt, n_out, first.kv)
        return msgspec.structs.replace(second, sent_s=first.sent_s)

    async def _body(
        self, url: str, prompt: Sequence[int], n_out: int, kv: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": await self.model(url),
            "prompt": list(prompt),
            "max_tokens": n_out,
            "ignore_eos": True,
            "temperature": 0.0,
            "return_token_ids": True,
        }
        if kv is not None:
            body["kv_transfer_params"] = dict(kv)
        return body


def _timeout() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=_TIMEOUT_S)
