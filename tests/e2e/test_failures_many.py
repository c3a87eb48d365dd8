"""The failure table under load: several failures at once, or one after another, on simulated engines."""

import asyncio
import contextlib
import os
import signal

import aiohttp
import pytest

from ppd.core.names import Reason
from tests.e2e.failure_load import crash, fault, gauge
from tests.e2e.failure_scene import MODEL, Scene

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(600)]

SETTINGS = {"PPD_PREFILL_S": "4", "PPD_FIRST_BYTE_S": "4", "PPD_IDLE_S": "4"}
DECODES = ("d0", "d1")


async def test_both_d_are_killed_at_once(scene: Scene) -> None:
    """Their streams go on elsewhere, and none is longer or shorter than asked."""
    async with scene.load(chats=20, out_tokens=200) as load:
        for name in DECODES:
            os.kill(scene.engine_pid(name), signal.SIGKILL)
        await load.more(40)
        for name in DECODES:
            await scene.takes_part_again(load, name)


async def test_a_d_is_killed_again_and_again(scene: Scene) -> None:
    """Answers that outlast several engines."""
    async with scene.load(chats=12, out_tokens=400) as load:
        for i in range(6):
            url = (await scene.engines()).get(DECODES[i % 2])
            if url is not None:
                await crash(scene.http, url)
            await asyncio.sleep(2)
        await load.more(12)
        for name in DECODES:
            await scene.takes_part_again(load, name)


async def test_clients_that_hang_up_set_no_pair_aside(scene: Scene) -> None:
    before = await gauge(scene.http, scene.stack.url, "ppd_pairs_set_aside_total")

    async def hang_up(number: int) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{number}: " + "how deep is the sea? " * 300}],
            "stream": True,
        }
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(0.1 + number % 20 / 20):
                async with scene.http.post(f"{scene.stack.url}/v1/chat/completions", json=body) as answer:
                    await answer.read()

    async with scene.load(chats=6) as load:
        for wave in range(10):
            await asyncio.gather(*(hang_up(wave * 20 + i) for i in range(20)))
    assert await gauge(scene.http, scene.stack.url, "ppd_pairs_set_aside_total") == before
    assert not load.reasons[Reason.NO_PREFILL]
    assert not load.reasons[Reason.PREFILL_FAILED]


async def test_text_that_is_held_back_is_no_failure(scene: Scene) -> None:
    """The engines make steps and send nothing until the end, for longer than `--idle-s`."""
    async with scene.load(chats=4) as load:
        await load.more(4)
    engines = await scene.engines()
    for name in DECODES:
        await fault(scene.http, engines[name], hold_text=True)
    before = await gauge(scene.http, scene.stack.url, "ppd_migrations_total")
    async with scene.load(chats=4, out_tokens=300) as load:
        pass
    assert not load.reasons[Reason.DECODE_FAILED]
    assert await gauge(scene.http, scene.stack.url, "ppd_migrations_total") == before
