"""An engine that somebody else runs."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import free_port

pytestmark = [pytest.mark.contract, pytest.mark.timeout(180)]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a simulated decode engine, on the same port each time, beside the agent `d0`."""
    port, made = free_port(), []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "workers.sim.server", "--model", "small", "--role", "decode"]
        command += ["--port", str(port), "--run-dir", str(tmp_path / "d0")]
        made.append(subprocess.Popen(command))
        made[-1].port = port
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait()


async def test_an_attached_engine_outlives_a_drain(worker, engine) -> None:
    running = engine()
    agent = worker("d0", "--role", "decode", "--attach", f"http://127.0.0.1:{running.port}")
    record = await agent.record()
    assert record.url == f"http://127.0.0.1:{running.port}"
    assert record.engine_id
    agent.end()
    await agent.gone()
    assert running.poll() is None


async def test_an_attached_engine_that_is_started_anew_is_another_worker(worker, engine) -> None:
    running = engine()
    agent = worker("d0", "--role", "decode", "--attach", f"http://127.0.0.1:{running.port}")
    old = await agent.record()
    running.kill()
    running.wait()
    await agent.gone()
    engine()
    new = await agent.record(other_than=old.worker_id)
    assert (new.url, new.engine_id == old.engine_id) == (old.url, False)
