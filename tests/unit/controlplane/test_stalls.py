"""A frontend that stood still itself does not blame the engines."""

import asyncio
import time

import pytest

from controlplane.engines.deadline import deadline
from tests.support.answers import TEXT, events, words
from tests.support.waiting import until
from tests.unit.controlplane.conftest import P_2D, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit


async def test_a_deadline_does_not_count_a_stall() -> None:
    """The answer came in while this process stood still."""
    answer = asyncio.get_running_loop().create_future()
    async with deadline(0.5):
        await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251
        asyncio.get_running_loop().call_later(0.05, answer.set_result, "in time")
        assert await answer == "in time"


async def test_a_deadline_ends_what_takes_too_long() -> None:
    with pytest.raises(TimeoutError):
        async with deadline(0.15):
            await asyncio.Event().wait()


async def test_streams_stay_where_they_are_when_the_frontend_stood_still() -> None:
    async with running(P_2D, idle_s=1.0, suspect_s=1.0, connect_s=5.0) as stack:
        for name in ("d0", "d1"):
            stack.engines[name].faults.append(Fault("slow", after=2))
            stack.engines[name].slow_s = 0.3
        async with await stack.chat("hi", stream=True) as response:
            text = asyncio.create_task(response.text())
            await until(lambda: any(stack.engines[name].requests for name in ("d0", "d1")))
            await asyncio.sleep(0.15)
            time.sleep(2.0)  # noqa: ASYNC251
            assert words(events(await text)) == TEXT
        assert sum(len(stack.engines[name].requests) for name in ("d0", "d1")) == 1
        assert not any(
            w.suspected or w.resting(asyncio.get_running_loop().time())
            for w in stack.frontend.cluster.workers.values()
        )
