"""Multi-turn chats with the shapes of real traffic, and of traffic that differs from it in kind."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import exp

from simulator.arrivals import bursty, poisson
from simulator.conversation import Conversation, TurnSpec

_MAX_CONTEXT_TOKENS = 30_000


@dataclass(frozen=True, slots=True)
class Length:
    """Log-normal numbers of tokens, by median and the sigma of the logarithm, within bounds."""

    median: float
    sigma: float
    low: int = 4
    high: int = 8192

    def draw(self, rng: random.Random) -> int:
        return min(self.high, max(self.low, round(self.median * exp(rng.gauss(0.0, self.sigma)))))


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """One kind of chat. Turns are geometric between bounds; think time is exponential."""

    first_in: Length
    later_in: Length
    out: Length
    mean_turns: float
    min_turns: int = 2
    max_turns: int = 20
    think_s: float = 2.0
    shared_tokens: int = 0

    def draw(self, rng: random.Random, number: int, start_s: float) -> Conversation:
        turns: list[TurnSpec] = []
        more = 1 - 1 / max(1.001, self.mean_turns - self.min_turns + 1)
        context = 0
        while len(turns) < self.max_turns:
            if len(turns) >= self.min_turns and rng.random() > more:
                break
            n_in = (self.first_in if not turns else self.later_in).draw(rng) + (
                0 if turns else self.shared_tokens
            )
            n_out = self.out.draw(rng)
            context += n_in + n_out
            if turns and context > _MAX_CONTEXT_TOKENS:
                break
            turns.append(TurnSpec(n_in, n_out, rng.expovariate(1 / self.think_s) if turns else 0.0))
        return Conversation(number, start_s, tuple(turns), shared_tokens=self.shared_tokens)


# ShareGPT: short questions, answers of a few hundred tokens, 2 to 20 turns. WildChat: longer pastes.
SHAREGPT = WorkloadShape(Length(60, 1.1), Length(40, 1.0), Length(180, 0.8, high=1024), mean_turns=4.0)
WILDCHAT = WorkloadShape(Length(150, 1.4), Length(70, 1.3), Length(280, 0.7, high=1536), mean_turns=4.5)
LONG_CONTEXT = WorkloadShape(
    Length(9000, 0.4, high=20_000), Length(120, 0.8), Length(150, 0.6, high=600), mean_turns=5.0
)
DECODE_HEAVY = WorkloadShape(Length(60, 0.8), Length(40, 0.6), Length(700, 0.4, high=1500), mean_turns=4.0)
PREFILL_HEAVY = WorkloadShape(Length(1200, 0.5), Length(900, 0.5), Length(50, 0.6, high=200), mean_turns=5.0)
AGENTIC = WorkloadShape(
    Length(800, 0.4),
    Length(250, 0.7),
    Length(70, 0.7, high=400),
    12.0,
    6,
    20,
    think_s=0.5,
    shared_tokens=2048,
)
SIXTEEN_TURNS = WorkloadShape(
    Length(80, 0.8), Length(60, 0.8), Length(150, 0.6, high=600), 16.0, 16, 16, think_s=1.0
)

Arrivals = Callable[[random.Random, float, float], Iterator[float]]


def generate(
    shape: WorkloadShape, per_s: float, duration_s: float, seed: int, arrivals: Arrivals = poisson
) -> list[Conversation]:
    """The chats of a seed are the same at any rate, and only begin sooner or later."""
    starts = arrivals(random.Random(seed), per_s, duration_s)
    rng = random.Random(f"{seed} chats")
    return [shape.draw(rng, i, at_s) for i, at_s in enumerate(starts)]


def joined(first: list[Conversation], second: list[Conversation], after_s: float) -> list[Conversation]:
    """`second` begins `after_s` later: traffic that changes its kind."""
    moved = [replace(c, id=len(first) + i, start_s=c.start_s + after_s) for i, c in enumerate(second)]
    return [*first, *moved]


__all__ = [
    "AGENTIC",
    "DECODE_HEAVY",
    "LONG_CONTEXT",
    "PREFILL_HEAVY",
    "SHAREGPT",
    "SIXTEEN_TURNS",
    "WILDCHAT",
    "Length",
    "WorkloadShape",
    "bursty",
    "generate",
    "joined",
    "poisson",
]
