"""Fixtures: the whole stack, started once by `ppd up`, with real engines or simulated ones."""

import contextlib
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.e2e.failure_scene import Scene, scene_of, started
from tests.e2e.local_stack import LocalStack, engines_to_ourselves
from tests.support.processes import send_signal


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def running(stack: LocalStack) -> Iterator[LocalStack]:
    """1P1D of real vLLM, up and serving; at the end `ppd down` must leave nothing."""
    signal.signal(signal.SIGTERM, _interrupt)  # else a test run that is ended leaves the stack behind
    with engines_to_ourselves():
        try:
            up = stack.up()
            assert up.returncode == 0, up.stdout + up.stderr
            yield stack
        finally:
            stack.ppd("down")
            left = stack.processes()
            send_signal(left, signal.SIGKILL)
    assert left == []


@pytest.fixture(scope="session")
def real_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with running(LocalStack(tmp_path_factory.mktemp("stack"))) as stack:
        yield stack


@pytest.fixture
def sim_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A stack not started yet, to be given `--engine sim`."""
    stack = LocalStack(tmp_path_factory.mktemp("sim"))
    yield stack
    stack.ppd("down")
    send_signal(stack.processes(), signal.SIGKILL)


@pytest.fixture(scope="module")
def scene_stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalStack]:
    """2P2D of simulated engines, whose services have the SETTINGS of the test's module."""
    with started(tmp_path_factory.mktemp("scene"), **request.module.SETTINGS) as made:
        yield made


@pytest.fixture
async def scene(scene_stack: LocalStack) -> AsyncIterator[Scene]:
    async with scene_of(scene_stack) as made:
        yield made
