"""The conversations that a profile measured, under SLO classes and by the router's own choice."""

import asyncio
import contextlib
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence

import aiohttp

from planner.profile.client import Frontend
from planner.profile.words import Words
from ppd.core.cells import CONTEXT_TOKENS, SHAPES, Context, Ratio
from ppd.core.names import H_SLO
from ppd.core.records import CellRecord

_DEADLINE_S = 120.0
_INSIDE = 0.9  # of a shape's input: its own is the border to the next type


class Traffic:
    """Two-turn conversations at `url`, each cell's at the rate that it was measured at.

    Every conversation belongs to one of `classes` by turns, so that all classes meet the same load.
    """

    def __init__(self, url: str, model: str, classes: Sequence[str]) -> None:
        self._url = url
        self._model = model
        self._classes = classes
        self._rng = random.Random(7)
        self._words = Words(self._rng)
        self._begun = 0
        self.routes: dict[str, Counter[str]] = {name: Counter() for name in classes}  # of second turns
        self.reasons: Counter[str] = Counter()

    async def run(self, cells: Iterable[CellRecord], seconds: float) -> None:
        """One cell after another, for so long each; returns when the last conversation is over."""
        async with contextlib.AsyncExitStack() as stack:
            frontends = {name: await self._frontend(stack, name) for name in self._classes}
            await self._words.calibrate(lambda text: self._count(frontends[self._classes[0]], text))
            async with asyncio.TaskGroup() as group:
                for cell in cells:
                    rate = cell.measured_qps or cell.qps
                    for _ in range(max(1, round(rate * seconds))):
                        name = self._classes[self._begun % len(self._classes)]
                        self._begun += 1
                        group.create_task(self._chat(frontends[name], name, cell))
                        await asyncio.sleep(self._rng.expovariate(rate))

    async def _frontend(self, stack: contextlib.AsyncExitStack, slo_class: str) -> Frontend:
        headers = {"content-type": "application/json", H_SLO: slo_class}
        http = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))
        found = Frontend(await stack.enter_async_context(http), self._url, admin_key="")
        found.model = self._model
        return found

    async def _count(self, frontend: Frontend, text: str) -> int:
        messages = [{"role": "system", "content": self._words.start()}, {"role": "user", "content": text}]
        return (await frontend.ask(messages, 1, secrets.token_hex(8), _DEADLINE_S)).prompt_tokens

    async def _chat(self, frontend: Frontend, slo_class: str, cell: CellRecord) -> None:
        first = CONTEXT_TOKENS[Context(cell.context)] // 2
        shape = SHAPES[Ratio(cell.ratio)]
        session = secrets.token_hex(8)
        system, user = self._words.opening(first)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        answer = await frontend.ask(messages, first, session, _DEADLINE_S)
        messages.append({"role": "assistant", "content": answer.text})
        messages.append({"role": "user", "content": self._words.message(int(_INSIDE * shape.n_in))})
        answer = await frontend.ask(messages, shape.n_out, session, _DEADLINE_S)
        self.routes[slo_class][answer.route] += 1
        self.reasons[answer.reason] += 1

    def shares(self) -> list[float]:
        """D-local, of each class."""
        return [found["d-local"] / max(1, found.total()) for found in self.routes.values()]
