"""The failure table under load, its engine rows: simulated engines, all else as in production.

Each test has twenty streams on 2P2D while something breaks: no request fails, no token is lost or doubled,
what broke takes traffic again by itself, and in the end no engine holds KV for anybody.
"""

import pytest

from tests.e2e.failure_load import crash, fault, gauge
from tests.e2e.failure_scene import Scene

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(600)]

# Deadlines in proportion to engines that answer within milliseconds.
SETTINGS = {"PPD_PREFILL_S": "4", "PPD_FIRST_BYTE_S": "8", "PPD_IDLE_S": "4"}


@pytest.mark.parametrize("name", ["p0", "d0"])
async def test_an_engine_is_killed(scene: Scene, name: str) -> None:
    """P before, during and after prefills; D before first tokens and mid-stream: of twenty turns."""
    async with scene.load() as load:
        await crash(scene.http, (await scene.engines())[name])
        await load.more(60)
        await scene.takes_part_again(load, name)


async def test_p_answers_5xx(scene: Scene) -> None:
    async with scene.load() as load:
        url = (await scene.engines())["p0"]
        await fault(scene.http, url, error_share=1.0, error_status=503)
        await load.more(60)
        await fault(scene.http, url)
        await scene.takes_part_again(load, "p0")


async def test_both_p_answer_5xx_and_d_prefills(scene: Scene) -> None:
    async with scene.load() as load:
        engines = await scene.engines()
        for name in ("p0", "p1"):
            await fault(scene.http, engines[name], error_share=1.0)
        await load.more(20)
        before = load.routes["d-local"]
        await load.more(20)
        assert load.routes["d-local"] > before
        for name in ("p0", "p1"):
            await fault(scene.http, engines[name])
        await scene.takes_part_again(load, "p0")


@pytest.mark.parametrize("name", ["p0", "d0"])
async def test_an_engine_stalls(scene: Scene, name: str) -> None:
    """It takes requests and makes no step: its turns go elsewhere after the deadline."""
    async with scene.load() as load:
        url = (await scene.engines())[name]
        await fault(scene.http, url, stalled=True)
        await load.more(60)
        await fault(scene.http, url)
        await scene.takes_part_again(load, name)


async def test_d_answers_5xx(scene: Scene) -> None:
    async with scene.load() as load:
        url = (await scene.engines())["d1"]
        await fault(scene.http, url, error_share=1.0)
        await load.more(60)
        await fault(scene.http, url)
        await scene.takes_part_again(load, "d1")


async def test_d_cuts_streams(scene: Scene) -> None:
    """Each stream of d0 breaks after some tokens and goes on at d1."""
    async with scene.load() as load:
        url = (await scene.engines())["d0"]
        await fault(scene.http, url, drop_after_tokens=9)
        await load.more(40)
        await fault(scene.http, url)
        await scene.takes_part_again(load, "d0")


async def test_d_evicts(scene: Scene) -> None:
    """The turns are only slower."""
    async with scene.load() as load:
        for _ in range(5):
            for name, url in (await scene.engines()).items():
                if name.startswith("d"):
                    await scene.http.post(f"{url}/sim/evict")
            await load.more(15)


@pytest.mark.parametrize("kind", ["kv_fail", "kv_hang"])
async def test_kv_does_not_pass(scene: Scene, kind: str) -> None:
    """D computes the prompt again; P serves others, and the pair is used again once KV passes."""
    before = await gauge(scene.http, scene.stack.url, "ppd_pairs_set_aside_total")
    async with scene.load(prompt_words=400) as load:
        url = (await scene.engines())["p0"]
        await fault(scene.http, url, **{kind: True})
        await load.more(40)
        if kind == "kv_fail":
            assert await gauge(scene.http, scene.stack.url, "ppd_pairs_set_aside_total") > before
        await fault(scene.http, url)
        await scene.takes_part_again(load, "p0")
