"""The failure table under load: engines that are stopped; their connections stay open, and nothing comes.

The deadlines for a first byte and between two bytes are those of production, far longer than a test.
"""

import asyncio

import pytest

from tests.e2e.failure_scene import MODEL, Scene, held

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(600)]

SETTINGS = {"PPD_SUSPECT_S": "3"}


@pytest.mark.parametrize("names", [("d0",), ("d0", "d1"), ("p0",)], ids="+".join)
async def test_engines_are_stopped(scene: Scene, names: tuple[str, ...]) -> None:
    """Their turns move, to the P's where no D is left, and they take part again when they are back."""
    async with scene.load() as load:
        with held(*(scene.engine_pid(name) for name in names)):
            async with asyncio.timeout(20):
                await load.more(60)
            model = (await scene.health())["models"][MODEL]
            assert set(model["suspect"]) == set(names)
            assert model["missing"] == (["decode"] if len(names) == 2 else [])
        for name in names:
            await scene.takes_part_again(load, name)
    assert (await scene.health())["status"] == "ok"
