"""One load, its turns under several SLO classes by turns: what each class's weights do to the route."""

import asyncio
import random
import time
from collections import Counter

import aiohttp

from planner.profile.words import Words

WEIGHTS = (0.0, 1.0, 4.0, 16.0, 256.0)  # of TPOT, against 1 for TTFT
_TURNS = 7
_ANSWER_TOKENS = 24
_QUESTION_TOKENS = (16, 60, 200)
_DEADLINE_S = 120.0


def slo_class(weight: float) -> str:
    return f"tpot-{weight:g}"


class Sweep:
    """Conversations over `url`, `rate` a second; `routes` counts later turns by weight and route."""

    def __init__(self, url: str, model: str, rate: float) -> None:
        self._url = url
        self._rate = rate
        self._model = model
        self._rng = random.Random(7)
        self._words = Words(self._rng, fixed=5.0)
        self.routes: dict[float, Counter[str]] = {weight: Counter() for weight in WEIGHTS}
        self.reasons: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Arrivals as a Poisson process for so long; returns when the last conversation is over."""
        until_s = time.monotonic() + seconds
        number = 0
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
            while time.monotonic() < until_s:
                group.create_task(self._chat(http, number))
                number += 1
                await asyncio.sleep(self._rng.expovariate(self._rate))

    async def _chat(self, http: aiohttp.ClientSession, number: int) -> None:
        system, user = self._words.opening(128)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        for turn in range(1, _TURNS + 1):
            weight = WEIGHTS[(number + turn) % len(WEIGHTS)]
            body = {
                "model": self._model,
                "messages": messages,
                "max_tokens": _ANSWER_TOKENS,
                "min_tokens": _ANSWER_TOKENS,
                "ignore_eos": True,
                "temperature": 0,
            }
            async with (
                asyncio.timeout(_DEADLINE_S),
                http.post(
                    f"{self._url}/v1/chat/completions", json=body, headers={"x-slo-class": slo_class(weight)}
                ) as answer,
            ):
                assert answer.status == 200, await answer.text()
                text = (await answer.json())["choices"][0]["message"]["content"]
                route, reason = answer.headers["x-ppd-route"], answer.headers["x-ppd-reason"]
            if turn > 1:
                self.routes[weight][route] += 1
                self.reasons[reason] += 1
            question = self._words.message(_QUESTION_TOKENS[(number + turn) % len(_QUESTION_TOKENS)])
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": question}]

    def shares(self) -> list[float]:
        """D-local, by rising weight of TPOT."""
        return [found["d-local"] / max(1, found.total()) for found in self.routes.values()]
