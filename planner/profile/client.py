"""The frontend as a client sees it: streamed chats, timed, on a path that an operator forces."""

import asyncio
import time
from typing import Any

import aiohttp
import msgspec

from planner.profile.records import ProfileError
from ppd.core.names import H_REASON, H_ROUTE, H_SESSION, Route
from ppd.runtime.endpoints import redacted

H_FORCE = "x-ppd-force-route"
H_ADMIN = "x-ppd-admin-key"
_SHORT_S = 5.0
_MAX_LINE_BYTES = 1 << 20


class TurnError(Exception):
    """One turn failed; the message says how."""


class MeasuredAnswer(msgspec.Struct):
    """One finished turn. Times in ms as the client saw them; TPOT is the mean after the first token."""

    text: str = ""
    route: str = ""
    reason: str = ""
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = -1


class MeasuredCluster(msgspec.Struct, frozen=True):
    """What the frontend says of the model that is to be measured."""

    model: str
    placement: str
    max_model_len: int  # tokens; 0 = not told
    table_version: int


class Frontend:
    """Calls one frontend. `admin_key` is what lets a path be forced."""

    def __init__(self, http: aiohttp.ClientSession, url: str, admin_key: str) -> None:
        self._http = http
        self._url = url.rstrip("/").removesuffix("/v1")
        self._shown = redacted(self._url)
        self._admin_key = admin_key
        self.model = ""

    async def cluster(self, model: str = "") -> MeasuredCluster:
        """The one model that is served, or `model`. Raises ProfileError."""
        health = await self._get("/health")
        served = {name: each for name, each in (health.get("models") or {}).items() if each.get("servable")}
        name = model or (next(iter(served)) if len(served) == 1 else "")
        if name not in served:
            found = ", ".join(served) or "none: " + "; ".join(health.get("why") or ["no worker is ready"])
            raise ProfileError(f"{self._shown} serves {found}; name one with --model")
        listed = (await self._get("/v1/models")).get("data") or []
        length = next((each.get("max_model_len") for each in listed if each.get("id") == name), None)
        self.model = name
        about = served[name]
        return MeasuredCluster(
            name, str(about["placement"]), int(length or 0), int(about["table_version"] or 0)
        )

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_SHORT_S), self._http.get(self._url + path) as answer:
                body: dict[str, Any] = msgspec.json.decode(await answer.read())
                return body
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
            raise ProfileError(
                f"no frontend answers at {self._shown}: {str(error) or type(error).__name__}"
            ) from error

    async def ask(
        self,
        messages: list[dict[str, str]],
        n_out: int,
        session: str,
        deadline_s: float,
        path: Route | None = None,
    ) -> MeasuredAnswer:
        """One streamed turn of exactly `n_out` tokens. Raises TurnError, also after the deadline."""
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": n_out,
            "min_tokens": n_out,  # keeps the end-of-text token from being drawn
            "ignore_eos": True,
            "cache_salt": session,  # not even the template's beginning is shared
        }
        headers = {H_SESSION: session}
        if path is not None:
            headers |= {H_FORCE: path.value, H_ADMIN: self._admin_key}
        try:
            async with asyncio.timeout(deadline_s):
                return await self._stream(body, headers)
        except TimeoutError:
            raise TurnError(f"no end after {deadline_s:.0f} s") from None
        except (aiohttp.ClientError, OSError, msgspec.DecodeError, ValueError) as error:
            raise TurnError(str(error) or type(error).__name__) from error

    async def _stream(self, body: dict[str, Any], headers: dict[str, str]) -> MeasuredAnswer:
        began_s = time.monotonic()
        url = f"{self._url}/v1/chat/completions"
        async with self._http.post(url, data=msgspec.json.encode(body), headers=headers) as answer:
            if answer.status != 200:
                raise TurnError(f"{answer.status}: {(await answer.text())[:300]}")
            found = MeasuredAnswer(
                route=answer.headers.get(H_ROUTE, ""), reason=answer.headers.get(H_REASON, "")
            )
            await _read(answer, found, began_s)
        if not found.ttft_ms or not found.completion_tokens:
            raise TurnError("the answer had no token, or no usage")
        return found


async def _read(answer: aiohttp.ClientResponse, found: MeasuredAnswer, began_s: float) -> None:
    """Fill `found` from the stream. Raises TurnError if it ends without its `[DONE]`."""
    first_s = last_s = 0.0
    pieces: list[str] = []
    async for raw in answer.content:
        line = raw.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        event = msgspec.json.decode(data)
        if "error" in event:
            raise TurnError(str(event["error"])[:300])
        if choices := event.get("choices"):
            piece = (choices[0].get("delta") or {}).get("content")
            if piece:
                last_s = time.monotonic()
                first_s = first_s or last_s
                pieces.append(piece)
        if usage := event.get("usage"):
            found.prompt_tokens = usage.get("prompt_tokens") or 0
            found.completion_tokens = usage.get("completion_tokens") or 0
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            found.cached_tokens = -1 if cached is None else cached
    else:
        raise TurnError("the answer broke off")
    found.text = "".join(pieces)
    if first_s:
        found.ttft_ms = 1e3 * (first_s - began_s)
        found.tpot_ms = 1e3 * (last_s - first_s) / max(1, found.completion_tokens - 1)


def session(connections: int = 0) -> aiohttp.ClientSession:
    """A client without a limit on its connections, deadlines being each turn's own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_SHORT_S),
        read_bufsize=_MAX_LINE_BYTES,
        headers={"content-type": "application/json"},
    )
