"""The failure table under load, its other rows: etcd and NATS away, a frontend restarted, clients that leave,
ten times more load than there is room for."""

import asyncio
import contextlib
import os
import random
import signal

import aiohttp
import pytest

from ppd.core.names import Reason
from tests.e2e.failure_load import Load, gauge
from tests.e2e.failure_scene import MODEL, Scene, held

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(600)]

ROOM = 16  # turns at once, and as many in the queue
SETTINGS = {"PPD_MAX_RUNNING": str(ROOM), "PPD_MAX_QUEUED": str(ROOM), "PPD_QUEUE_S": "60"}


@pytest.mark.parametrize("away_s", [5, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["etcd", "nats"])
@pytest.mark.parametrize("kind", ["killed", "silent"])
async def test_a_server_is_away(scene: Scene, name: str, kind: str, away_s: int) -> None:
    """Serving goes on with what was last known, nothing is restarted, and all find back by themselves."""
    state = scene.stack.state()
    pids = scene.stack.pids()
    others = {member: pid for member, pid in pids.items() if member != name}
    async with scene.load(chats=12) as load:
        stopped = (
            [pids[name]] if kind == "silent" else [state["supervisor"]["pid"]]
        )  # which would start it anew
        with held(*stopped):
            if kind == "killed":
                os.kill(pids[name], signal.SIGKILL)
            await asyncio.sleep(away_s)
            await load.more(20)
        await load.more(20)

        async def recovered() -> bool:
            return (await scene.health()).get("status") == "ok"

        await scene.until(recovered)
        await load.more(20)
    assert {member: pid for member, pid in scene.stack.pids().items() if member != name} == others


async def test_the_frontend_is_restarted(scene: Scene) -> None:
    """Turns of its own fail with it; after it each conversation is known, and most of their next turns are
    D-local again (one may be sent elsewhere to explore, or by the load)."""
    chats = [[{"role": "user", "content": f"chat {i}: tell me of the sea. " * 20}] for i in range(8)]
    load = Load(scene.stack.url, MODEL)
    async with load.session():

        async def one(messages: list[dict[str, str]]) -> None:
            answer = await load.turn(messages)
            assert answer is not None
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and then?"}]

        await asyncio.gather(*map(one, chats))
        await asyncio.sleep(1)  # sessions are written behind
        before = scene.stack.pids()["frontend"]
        os.kill(before, signal.SIGKILL)

        async def back() -> bool:
            return scene.stack.pids()["frontend"] != before and (await scene.health()).get("status") == "ok"

        await scene.until(back)
        load.routes.clear()
        load.reasons.clear()
        await asyncio.gather(*map(one, chats))
        lost = {Reason.FIRST_TURN, Reason.NOT_CACHED, Reason.SESSION_MOVED} & load.reasons.keys()
        assert not lost, load.reasons
        assert load.routes["d-local"] > len(chats) // 2, load.reasons
    await scene.until(scene.idle)


async def test_clients_hang_up_at_every_stage(scene: Scene) -> None:
    """In the queue, at P, between the hops, at D, in the middle of a stream: nobody works on for them, and no
    block waits for its lease to end."""
    rng = random.Random(3)
    engines = await scene.engines()
    expired = {
        name: await gauge(scene.http, url, "vllm:nixl_num_kv_expired_reqs_total")
        for name, url in engines.items()
    }

    async def one(number: int) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{number}: " + "how deep is the sea? " * 200}],
            "max_tokens": 400,
            "ignore_eos": True,
            "stream": bool(number % 3),
        }
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(rng.random() * 0.6):
                async with scene.http.post(f"{scene.stack.url}/v1/chat/completions", json=body) as answer:
                    await answer.read()

    async with scene.load(chats=6):
        for wave in range(10):
            await asyncio.gather(*(one(wave * 10 + i) for i in range(10)))
    for name, url in engines.items():
        assert await gauge(scene.http, url, "vllm:num_requests_running") == 0
        after = await gauge(scene.http, url, "vllm:nixl_num_kv_expired_reqs_total")
        assert after == expired[name], f"{name} held blocks until their lease ended"


async def test_ten_times_more_than_there_is_room_for(scene: Scene) -> None:
    """Each is answered, or told with 429 when to come again; who is served is served right."""
    async with scene.load(chats=10 * 2 * ROOM, out_tokens=16) as load:
        await load.more(100)
    assert load.refused > 0
