"""One point: conversations that arrive as a Poisson process, each with its later turns on one path."""

import asyncio
import random
import time
from statistics import fmean

from planner.profile.capacity import MeasurementPlan
from planner.profile.client import Frontend
from planner.profile.conversation import hold
from planner.profile.records import Flag, Point, TurnSample
from planner.profile.words import Words
from ppd.core.names import Route

_USABLE = 0.9  # of the turns
_GROWTH = 2.0
_LEAST_FOR_GROWTH = 6  # conversations


async def measure(
    frontend: Frontend, words: Words, plan: MeasurementPlan, path: Route, turns: int, rng: random.Random
) -> Point:
    """Ends when the last conversation has; those of the lead are held and not counted."""
    began_s = time.monotonic()
    due_s = began_s
    tasks: list[asyncio.Task[list[TurnSample]]] = []
    async with asyncio.TaskGroup() as group:
        for gap_s in plan.gaps_s(rng):
            due_s += gap_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(group.create_task(hold(frontend, words, plan.cell, path, turns, plan.deadline_s)))
    held = [task.result() for task in tasks[plan.lead :]]
    samples = tuple(sample for each in held for sample in each)
    grown = growth([each[-1].conversation_s for each in held if each[-1].ok])
    return Point(
        cell=str(plan.cell),
        path=path,
        rate=plan.rate,
        samples=samples,
        seconds=time.monotonic() - began_s,
        ended_unix_s=time.time(),
        flag=judge(samples, grown),
        growth=round(grown, 2),
    )


def growth(conversation_s: list[float]) -> float:
    """How much longer the later half took than the earlier, in order of arrival; 1 where few were held."""
    if len(conversation_s) < _LEAST_FOR_GROWTH:
        return 1.0
    half = len(conversation_s) // 2
    return fmean(conversation_s[half:]) / fmean(conversation_s[:half])


def judge(samples: tuple[TurnSample, ...], grown: float) -> Flag | None:
    if sum(sample.ok for sample in samples) < _USABLE * len(samples):
        return Flag.FAILED
    return Flag.SATURATED if grown > _GROWTH else None
