"""More requests than may run: a bounded queue, then 429."""

import asyncio

import pytest

from tests.support.waiting import until
from tests.unit.controlplane.conftest import P_D, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit


async def test_overload_is_429_after_a_bounded_queue() -> None:
    async with running(P_D, max_running=2, max_queued=2, queue_s=30) as stack:
        stack.engines["d0"].chunk_gap_s = 0.1

        async def one(i: int) -> int:
            async with await stack.chat(f"hi {i}", stream=True) as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(one(i) for i in range(12)))
        assert sorted(statuses) == [200] * 4 + [429] * 8
        assert (await one(99)) == 200


async def test_waiting_too_long_in_the_queue_is_429() -> None:
    async with running(P_D, max_running=1, max_queued=5, queue_s=0.05) as stack:
        stack.engines["d0"].faults.append(Fault("stall"))
        blocked = asyncio.create_task(stack.ask("hi"))
        await until(lambda: bool(stack.engines["d0"].requests))
        async with await stack.chat("other") as response:
            assert response.status == 429
            assert response.headers["retry-after"]
        blocked.cancel()
