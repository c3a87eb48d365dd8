"""What the agent asks its engine over HTTP; each call has a deadline."""

import json
from collections.abc import Sequence
from typing import Any

import aiohttp

from ppd.runtime import engine_key

_CALL_S = 5.0
_UNSAMPLED = "00-00000000000000000000000000000001-0000000000000001-00"  # probes leave no trace


class EngineError(Exception):
    """The engine did not answer, or not with what it should; the message names URL and cause."""


class EngineSilentError(EngineError):
    """It did not answer at all, or not in time."""


class EngineClient:
    """HTTP to one engine."""

    def __init__(self, url: str, key: str = "") -> None:
        """`key`: the bearer token that the engine asks for, if it does."""
        self.url = url
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_CALL_S), headers=engine_key.headers(key)
        )

    async def close(self) -> None:
        await self._session.close()

    async def healthy(self) -> bool:
        """Whether `/health` says so."""
        try:
            await self._call("GET", "/health")
        except EngineError:
            return False
        return True

    async def models(self) -> list[dict[str, Any]]:
        """What it serves, as `/v1/models` lists it: the model first, then its second names and adapters."""
        try:
            reply = json.loads(await self._call("GET", "/v1/models"))
        except ValueError as error:
            raise EngineError(f"{self.url} lists its models as no JSON: {error}") from error
        models = reply.get("data") if isinstance(reply, dict) else None
        if not models or not all(isinstance(each, dict) and each.get("id") for each in models):
            raise EngineError(f"{self.url} serves no model")
        return list(models)

    async def model(self) -> dict[str, Any]:
        """The model itself."""
        return (await self.models())[0]

    async def version(self) -> str:
        """vLLM's version."""
        return str(json.loads(await self._call("GET", "/version")).get("version", ""))

    async def metrics(self, names: Sequence[str] = ()) -> str:
        """Prometheus text; only the samples of `names` where given, which costs the engine a fifth."""
        # vLLM renders all of it under /metrics; the mount below it is prometheus_client's, which can filter.
        path = "/metrics/" if names else "/metrics"
        return await self._call("GET", path, params=[("name[]", name) for name in names])

    async def generate(self, model: str, deadline_s: float, **options: int) -> None:
        """Have one token generated. Raises EngineError if none came in time."""
        body = {"model": model, "prompt": "Hi", "max_tokens": 1, "temperature": 0, **options}
        await self._call(
            "POST", "/v1/completions", deadline_s, json=body, headers={"traceparent": _UNSAMPLED}
        )

    async def _call(self, method: str, path: str, deadline_s: float = _CALL_S, **rest: Any) -> str:
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        try:
            async with self._session.request(method, self.url + path, timeout=timeout, **rest) as reply:
                text = await reply.text()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise EngineSilentError(f"{self.url}{path}: {str(error) or type(error).__name__}") from error
        if reply.status == 401:
            raise EngineError(
                f"{self.url}{path}: the engine refuses the key: {engine_key.VARIABLE} is not its own"
            )
        if reply.status != 200:
            raise EngineError(f"{self.url}{path}: HTTP {reply.status}: {text[:300]}")
        return text
