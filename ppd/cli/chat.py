"""`ppd chat`: a small terminal chat that shows how each turn travelled and how long it took."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
from pydantic import Field

from ppd.cli import paths
from ppd.cli.stack.state import running
from ppd.core.names import H_REASON, H_ROUTE
from ppd.runtime.endpoints import redacted
from ppd.runtime.settings import CommandSettings, Secret, load, secret

_CONNECT_S = 5.0
_SILENCE_S = 120.0
_MAX_LINE_BYTES = 1 << 20


class ChatError(RuntimeError):
    """The turn failed; the message is for the user."""


class ChatSettings(CommandSettings):
    """Talk to the model. An empty line or Ctrl-D ends the chat; Ctrl-C ends an answer."""

    url: str = Field("", description="of the frontend; empty: the stack of this folder, else port 8000")
    model: str = Field("", description="empty: the first that the frontend lists")
    system: str = Field("", description="a system prompt")
    temperature: float = Field(0.7, ge=0, le=2, description="0: always the same answer")
    max_tokens: int = Field(256, ge=1, description="longest answer, in tokens")
    api_key: Secret = secret("where the frontend asks for one; from PPD_API_KEY alone")


class ChatTurn(msgspec.Struct):
    """One answer: its text, how it travelled, and its times in ms (TPOT: mean after the first token)."""

    text: str = ""
    route: str = ""
    reason: str = ""
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def line(self) -> str:
        return (
            f"[{self.route} ({self.reason})  TTFT {self.ttft_ms:.0f} ms  TPOT {self.tpot_ms:.1f} ms  "
            f"cached {self.cached_tokens} of {self.prompt_tokens} prompt tokens]"
        )


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event. Raises ChatError if the stream ends without its `[DONE]`."""
    async for raw in answer.content:
        line = raw.strip()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = msgspec.json.decode(data, type=dict[str, Any])
        if "error" in event:
            raise ChatError(_message(event))
        yield event
    raise ChatError("the answer broke off")


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message", error)) if isinstance(error, dict) else str(body)


async def _raise_for_status(answer: aiohttp.ClientResponse) -> None:
    """Raises ChatError with the frontend's own words."""
    if answer.status == 200:
        return
    text = await answer.text(errors="replace")
    try:
        text = _message(msgspec.json.decode(text))
    except msgspec.DecodeError:
        pass
    hint = "; set PPD_API_KEY" if answer.status == 401 else ""
    raise ChatError(f"{answer.status}: {text}{hint}")


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], out: Any) -> ChatTurn:
    """One turn; the text is written to `out` as it comes. Raises ChatError."""
    began_s = time.monotonic()
    first_s = last_s = 0.0
    turn = ChatTurn()
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        await _raise_for_status(answer)
        turn.route = answer.headers.get(H_ROUTE, "?")
        turn.reason = answer.headers.get(H_REASON, "?")
        async for event in _events(answer):
            for choice in event.get("choices") or []:
                piece = (choice.get("delta") or {}).get("content") or ""
                if piece:
                    last_s = time.monotonic()
                    first_s = first_s or last_s
                    turn.text += piece
                    print(piece, end="", file=out, flush=True)
            if usage := event.get("usage"):
                turn.prompt_tokens = usage.get("prompt_tokens", 0)
                turn.completion_tokens = usage.get("completion_tokens", 0)
                turn.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if first_s:
        turn.ttft_ms = 1e3 * (first_s - began_s)
        turn.tpot_ms = 1e3 * (last_s - first_s) / max(1, turn.completion_tokens - 1)
    return turn


def _session(key: str) -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    headers = {"authorization": f"Bearer {key}"} if key else None
    return aiohttp.ClientSession(timeout=timeout, read_bufsize=_MAX_LINE_BYTES, headers=headers)


async def _first_model(url: str, key: str) -> str:
    try:
        async with _session(key) as session, session.get(f"{url}/v1/models") as answer:
            await _raise_for_status(answer)
            body = msgspec.json.decode(await answer.read())
    except aiohttp.ClientConnectionError:
        raise ChatError("nothing answers there; `ppd up` starts a stack, --url names another one") from None
    except msgspec.DecodeError:
        raise ChatError("what answers there is no frontend; --url names another one") from None
    models = [str(item["id"]) for item in body.get("data", [])]
    if not models:
        raise ChatError("the frontend lists no model yet; `ppd status` says what is missing")
    return models[0]


async def _one_turn(url: str, key: str, body: dict[str, Any]) -> ChatTurn:
    async with _session(key) as session:
        return await ask(session, url, body, sys.stdout)


def _read(prompt: str) -> str:
    """The next line; empty at the end of input. A pipe gets no prompt, and sees what it asked."""
    if sys.stdin.isatty():
        try:
            return input(prompt).strip()
        except EOFError:
            return ""
    line = sys.stdin.readline().strip()
    if line:
        print(f"{prompt}{line}")
    return line


def _talk(url: str, model: str, settings: ChatSettings) -> int:
    messages = [{"role": "system", "content": settings.system}] if settings.system else []
    failed = False
    while question := _read("you> "):
        messages.append({"role": "user", "content": question})
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
        }
        try:
            turn = asyncio.run(_one_turn(url, settings.api_key, body))
        except KeyboardInterrupt:
            print("\n[interrupted; this turn is forgotten]")
            messages.pop()
            continue
        except (ChatError, aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            print(f"\nppd chat: {str(error) or type(error).__name__}", file=sys.stderr)
            messages.pop()
            failed = True
            continue
        messages.append({"role": "assistant", "content": turn.text})
        print(f"\n{turn.line()}\n")
    return 1 if failed else 0


def main(argv: list[str]) -> int:
    settings = load(ChatSettings, argv, "ppd chat")
    local = running(paths.home())
    url = (
        (settings.url or (local.endpoint if local else "http://127.0.0.1:8000"))
        .rstrip("/")
        .removesuffix("/v1")
    )
    try:
        model = settings.model or asyncio.run(_first_model(url, settings.api_key))
    except (ChatError, aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        print(f"ppd chat: {redacted(url)}: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    print(f"{model} at {redacted(url)}; an empty line ends the chat\n")
    return _talk(url, model, settings)
