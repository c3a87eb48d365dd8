"""How much the cluster serves, and so which levels of the grid make sense and how long a point takes."""

import asyncio
import random
import secrets
import time
from collections.abc import Mapping
from math import ceil

import msgspec

from planner.profile.client import Frontend, TurnError
from planner.profile.records import ProfileError, Speeds
from planner.profile.words import Words
from ppd.core.cells import CONTEXT_TOKENS, QPS_LEVELS, SHAPES, Cell, Context, Ratio

SUSTAINED = 0.7  # of the capacity: where the lowest level is measured if the cluster serves less than it
_DECODE_TOKENS = 32
_PREFILL_TOKENS = 512
_PREFILLS = 4
_STREAMS = (4, 8, 16, 32, 64, 128, 256)
_GAIN = 1.2  # more streams are tried for as long as they bring so much
_LONG_BURST_S = 4.0  # and a burst is shorter than this: a slow cluster must not spend its budget here
_DEADLINE_S = 60.0
WINDOW_S = 10.0  # as in the paper
_LEAST_WINDOW_S = 3.0


class MeasuredShape(msgspec.Struct, frozen=True):
    """A cell without its level."""

    context: Context
    ratio: Ratio


async def measure(frontend: Frontend, words: Words) -> Speeds:
    """Bursts of more and more short prompts, and one of long ones. Raises ProfileError."""
    best, step_ms, streams = 0.0, 0.0, 0
    for n in _STREAMS:
        slowest_ms = max(tpot for tpot, _ in await _burst(frontend, words, n, 32, _DECODE_TOKENS))
        speed = 1e3 * n / slowest_ms
        if speed < best * _GAIN:
            break
        best, step_ms, streams = speed, slowest_ms, n
        if _DECODE_TOKENS * slowest_ms / 1e3 > _LONG_BURST_S:
            break
    return Speeds(
        prefill_tokens_per_s=await _prefill_burst(frontend, words),
        decode_tokens_per_s=best,
        step_ms=step_ms,
        streams=streams,
    )


async def _burst(frontend: Frontend, words: Words, n: int, n_in: int, n_out: int) -> list[tuple[float, int]]:
    """(TPOT in ms, prompt tokens) of each of `n` first turns at once."""

    async def one() -> tuple[float, int]:
        system, user = words.opening(n_in)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        answer = await frontend.ask(messages, n_out, f"profile-{secrets.token_hex(8)}", _DEADLINE_S)
        return answer.tpot_ms, answer.prompt_tokens

    try:
        return list(await asyncio.gather(*(one() for _ in range(n))))
    except TurnError as error:
        raise ProfileError(f"a burst of {n} prompts of {n_in} tokens failed: {error}") from error


async def _prefill_burst(frontend: Frontend, words: Words) -> float:
    began_s = time.monotonic()
    found = await _burst(frontend, words, _PREFILLS, _PREFILL_TOKENS, 1)
    return sum(tokens for _, tokens in found) / (time.monotonic() - began_s)


def conversations_per_s(speeds: Speeds, shape: MeasuredShape, turns: int) -> float:
    """What P's prefills and D's decoding leave room for, the narrower of the two."""
    tokens_in, tokens_out = _work(shape, turns)
    return 1 / max(tokens_in / speeds.prefill_tokens_per_s, tokens_out / speeds.decode_tokens_per_s)


def conversation_s(speeds: Speeds, shape: MeasuredShape, turns: int) -> float:
    """How long one takes at most, on a cluster that is busy but keeps up."""
    tokens_in, tokens_out = _work(shape, turns)
    return tokens_in / speeds.prefill_tokens_per_s + tokens_out * speeds.step_ms / 1e3


def _work(shape: MeasuredShape, turns: int) -> tuple[int, int]:
    """Tokens that P computes (the last answer again, with each new prompt), and that D decodes."""
    first = CONTEXT_TOKENS[shape.context] // 2
    n_in, n_out = SHAPES[shape.ratio]
    later = turns - 1
    recomputed = first + (later - 1) * n_out
    return first + recomputed + later * n_in, first + later * n_out


def rates(capacity: float) -> dict[float, float]:
    """The levels that a cluster of this capacity (conversations a second) can be measured at, and the rate
    that each is measured at.

    A level is measured at its own rate where the cluster serves as much. The lowest stands for every rate
    below the border to the next, so a slow cluster is measured under it at SUSTAINED of its capacity.
    """
    found = {level: level for level in QPS_LEVELS if level <= capacity}
    lowest = QPS_LEVELS[0]
    return {lowest: min(lowest, SUSTAINED * capacity)} | {q: r for q, r in found.items() if q > lowest}


class MeasurementPlan(msgspec.Struct, frozen=True):
    """How one cell is measured on one path."""

    cell: Cell
    rate: float
    lead: int  # conversations that fill the cluster first, and are not counted
    counted: int
    seconds: float  # that it will take, about
    deadline_s: float  # of each turn

    def gaps_s(self, rng: random.Random) -> list[float]:
        """Times between arrivals of a Poisson process."""
        return [rng.expovariate(self.rate) for _ in range(self.lead + self.counted)]


def window_s(budget_s: float | None) -> float:
    """Seconds of arrivals in one point: shorter where time is short, so that more cells are seen at all.

    What a short one leaves unsure is measured again where it matters.
    """
    return WINDOW_S if budget_s is None else min(WINDOW_S, max(_LEAST_WINDOW_S, budget_s / 150))


def plan(
    cell: Cell,
    rate: float,
    speeds: Speeds,
    turns: int,
    least: int,
    window_s: float,
    taken_s: Mapping[MeasuredShape, float],
) -> MeasurementPlan:
    """`least`: conversations counted at least; `taken_s`: how long a shape's took, where known."""
    shape = MeasuredShape(cell.context, cell.ratio)
    latency_s = taken_s.get(shape) or conversation_s(speeds, shape, turns)
    counted = max(least, ceil(rate * window_s))
    lead = min(counted, ceil(rate * latency_s))
    seconds = (lead + counted) / rate + latency_s
    return MeasurementPlan(cell, rate, lead, counted, seconds, 30 + 10 * latency_s)
