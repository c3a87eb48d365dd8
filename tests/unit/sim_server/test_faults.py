"""Each fault that an engine can be told to have, as a client and another engine see it."""

import asyncio
import signal
import sys

import aiohttp
import pytest

from ppd.core.names import Role
from tests.support.servers import free_port

pytestmark = pytest.mark.unit
HELLO = [{"role": "user", "content": "hello there, how are you today? " * 8}]
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


async def test_a_share_of_requests_fails_and_the_seed_says_which(start):
    r = await start()
    body = {"model": "m", "messages": HELLO, "max_tokens": 1}

    async def statuses():
        await r.post("/sim/faults", {"error_share": 0.5, "error_status": 502, "seed": 3})
        found = []
        for _ in range(20):
            async with aiohttp.ClientSession() as session:
                reply = await session.post(r.url + "/v1/chat/completions", json=body)
                found.append(reply.status)
        return found

    first = await statuses()
    assert set(first) == {200, 502}
    assert await statuses() == first


async def test_faults_can_be_seen_and_all_of_them_ended(start):
    r = await start()
    await r.post("/sim/faults", {"kv_slow": 5, "stalled": True})
    assert (await r.get("/sim/faults"))["kv_slow"] == 5
    async with aiohttp.ClientSession() as session, session.delete(r.url + "/sim/faults") as reply:
        assert (await reply.json())["kv_slow"] == 1
    assert not r.server.driver.stalled


async def test_a_delayed_request_is_looked_at_later_and_not_by_the_engine(start):
    r = await start()
    await r.post("/sim/faults", {"delay_s": 3600})
    waiting = asyncio.create_task(r.chat(HELLO))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert r.engine.waiting == r.engine.running == 0
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_hanging_health_answers_nothing_while_requests_are_served(start):
    r = await start()
    await r.post("/sim/faults", {"hang_health": True})
    asked = [asyncio.create_task(r.get(path)) for path in ("/health", "/metrics")]
    assert (await r.chat(HELLO, max_tokens=3))["usage"]["completion_tokens"] > 0
    assert not any(task.done() for task in asked)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("fault", [{"kv_slow": 1e12}, {"kv_hang": True}])
async def test_kv_that_does_not_come_keeps_d_waiting_and_p_leased_until_they_are_told(start, fault):
    p, d = await start(Role.PREFILL), await start(Role.DECODE)
    await p.post("/sim/faults", fault)
    first = await p.chat(HELLO, max_tokens=1, kv=PREFILL)
    kv = first["kv_transfer_params"]
    waiting = asyncio.create_task(d.chat(HELLO, kv=kv))
    await d.until(lambda: d.engine.waiting == 1)
    assert p.engine.leased == 1
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await d.until(lambda: d.engine.waiting == 0)
    assert d.engine.pool.in_use == 0
    await p.post("/inference/v1/abort_requests", {"request_ids": [kv["remote_request_id"]]})
    assert p.engine.leased == 0


async def test_a_crash_is_that_of_a_process(tmp_path):
    port = free_port()
    command = ("-m", "workers.sim.server", "--model", "m", "--role", "replica", "--port", str(port))
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(1200):
                try:
                    async with session.get(f"http://127.0.0.1:{port}/health"):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)
            with pytest.raises(aiohttp.ClientError):
                await session.post(f"http://127.0.0.1:{port}/sim/crash")
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
