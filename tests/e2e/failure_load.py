"""Many chats at once against one frontend, each answer checked word for word."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import aiohttp

from workers.sim import text

_TURNS = 3  # of each chat
_PAUSE_S = 0.05  # between a chat's turns, as a user would make one


class FailedTurnError(AssertionError):
    """What a client would complain of."""


class Load:
    """`chats` streamed conversations at once, over and over, for as long as the block lasts.

    Simulated engines answer a prompt always alike, so each answer is known beforehand: a token that is lost,
    doubled or another chat's is seen. `failures` holds what a client would complain of; `refused` counts 429s
    that say when to come again.
    """

    def __init__(self, url: str, model: str, chats: int = 20, out_tokens: int = 32, prompt_words: int = 120):
        self.failures: list[str] = []
        self.refused = 0
        self.turns = 0
        self.routes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.decoded_by: Counter[str] = Counter()
        self.prefilled_by: Counter[str] = Counter()
        self._url, self._model = url, model
        self._chats, self._out_tokens, self._prompt_words = chats, out_tokens, prompt_words
        self._over = False
        self._rng = random.Random(7)
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """For single turns, without the conversations."""
        async with self._new_session() as self._http:
            yield

    @staticmethod
    def _new_session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=240), connector=aiohttp.TCPConnector(limit=0)
        )

    async def __aenter__(self) -> "Load":
        self._http = self._new_session()
        self._tasks = [asyncio.create_task(self._talk(i)) for i in range(self._chats)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Every turn that has begun is seen to its end."""
        self._over = True
        await asyncio.gather(*self._tasks)
        await self._http.close()

    async def more(self, turns: int, within_s: float = 120) -> None:
        """Until so many further turns are through."""
        target = self.turns + turns
        async with asyncio.timeout(within_s):
            while self.turns < target:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _talk(self, which: int) -> None:
        await asyncio.sleep(which * 0.02)
        number = 0
        while not self._over:
            number += 1
            words = " ".join(self._rng.choices(text._WORDS, k=self._prompt_words))
            messages = [{"role": "user", "content": f"chat {which}.{number}: {words}"}]
            for _ in range(_TURNS):
                try:
                    answer = await self.turn(messages)
                except (FailedTurnError, aiohttp.ClientError, TimeoutError) as error:
                    self.failures.append(f"{which}.{number}: {type(error).__name__}: {error}")
                    break
                if answer is None or self._over:
                    break
                messages += [
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": "and what then?"},
                ]
                await asyncio.sleep(_PAUSE_S)

    async def turn(self, messages: list[dict[str, str]]) -> str | None:
        """One turn's answer, None where it was refused for now. Raises FailedTurnError."""
        body = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self._out_tokens,
            "ignore_eos": True,
        }
        async with self._http.post(f"{self._url}/v1/chat/completions", json=body) as response:
            if response.status == 429 and response.headers.get("retry-after", "").isdigit():
                self.refused += 1
                await asyncio.sleep(0.2)
                return None
            if response.status != 200:
                raise FailedTurnError(f"status {response.status}: {(await response.text())[:200]}")
            data = (await response.read()).decode()
        self._check(data, messages)
        self.routes[response.headers["x-ppd-route"]] += 1
        self.reasons[response.headers["x-ppd-reason"]] += 1
        self.decoded_by[response.headers.get("x-ppd-decode", "")] += 1
        self.prefilled_by[response.headers.get("x-ppd-prefill", "")] += 1
        self.turns += 1
        return "".join(text.answer(text.render(messages), self._out_tokens, 0)[0])

    def _check(self, data: str, messages: list[dict[str, str]]) -> None:
        events = [event.removeprefix("data: ") for event in data.split("\n\n") if event]
        if not events or events[-1] != "[DONE]":
            raise FailedTurnError(f"no [DONE]: {data[-300:]}")
        parts: list[dict[str, Any]] = [json.loads(event) for event in events[:-1]]
        choices = [choice for part in parts for choice in part.get("choices", ())]
        got = "".join(choice["delta"].get("content") or "" for choice in choices)
        wanted = "".join(text.answer(text.render(messages), self._out_tokens, 0)[0])
        if got != wanted:
            raise FailedTurnError(f"got {got!r} instead of {wanted!r}")
        if [choice["finish_reason"] for choice in choices if choice["finish_reason"]] != ["length"]:
            raise FailedTurnError("not exactly one finish reason")
        if (parts[-1].get("usage") or {}).get("completion_tokens") != self._out_tokens:
            raise FailedTurnError(f"usage is {parts[-1].get('usage')}")


async def fault(session: aiohttp.ClientSession, engine_url: str, **fields: Any) -> None:
    """Let an engine do wrong; without fields: no more."""
    if fields:
        async with session.post(f"{engine_url}/sim/faults", json=fields) as answer:
            assert answer.status == 200, await answer.text()
    else:
        async with session.delete(f"{engine_url}/sim/faults") as answer:
            assert answer.status == 200


async def crash(session: aiohttp.ClientSession, engine_url: str) -> None:
    with contextlib.suppress(aiohttp.ClientError):
        await session.post(f"{engine_url}/sim/crash")


async def gauge(session: aiohttp.ClientSession, engine_url: str, name: str) -> float:
    """One of a server's metrics; -1 where it does not answer."""
    try:
        async with session.get(f"{engine_url}/metrics", params={"name[]": name}) as answer:
            lines = (await answer.text()).splitlines()
    except aiohttp.ClientError:
        return -1.0
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))
