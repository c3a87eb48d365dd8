"""Small real processes in an engine's place."""

import asyncio
import os
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from workers.engine.ports import free_ports
from workers.engine.process import start_engine, tail

pytestmark = pytest.mark.unit

FAMILY = ["sh", "-c", "sleep 1000 & echo child $!; exec sleep 1000"]


def _gone(pid: int) -> bool:
    until_s = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


async def _child(log) -> int:
    until_s = time.monotonic() + 20
    while not log.exists() or b"child" not in log.read_bytes():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.02)
    return int(log.read_text().split()[1])


async def test_stop_ends_the_whole_family(tmp_path) -> None:
    log = tmp_path / "log"
    engine = await start_engine(FAMILY, os.environ, log)
    child = await _child(log)
    await engine.stop()
    assert engine.exit_code == -15
    assert _gone(child)


async def test_one_that_ignores_sigterm_is_killed_at_once_on_demand(tmp_path) -> None:
    log = tmp_path / "log"
    engine = await start_engine(
        ["sh", "-c", "trap '' TERM; echo child $$; while :; do sleep 1; done"], os.environ, log
    )
    await _child(log)
    await engine.stop(now=True)
    assert engine.exit_code == -9


async def test_the_log_of_the_engine_before_is_kept(tmp_path) -> None:
    for word in ("first", "second"):
        engine = await start_engine(["echo", word], os.environ, tmp_path / "log")
        await engine.wait()
        await engine.stop()
    assert (tmp_path / "log.1").read_text() == "first\n"
    assert (tmp_path / "log").read_text() == "second\n"


async def test_cores_are_inherited(tmp_path) -> None:
    core = min(os.sched_getaffinity(0))
    engine = await start_engine(["sleep", "1000"], os.environ, tmp_path / "log", {core})
    try:
        assert os.sched_getaffinity(engine.pid) == {core}
    finally:
        await engine.stop(now=True)


def test_kill_9_of_the_agent_takes_the_family_along(tmp_path) -> None:
    script = textwrap.dedent(f"""
        import asyncio, os
        from pathlib import Path
        from workers.engine.process import start_engine
        async def main():
            engine = await start_engine({FAMILY!r}, os.environ, Path({str(tmp_path / "log")!r}))
            print(engine.pid, flush=True)
            await asyncio.sleep(1000)
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as agent:
        pid = int(agent.stdout.readline())
        until_s = time.monotonic() + 20
        while b"child" not in (tmp_path / "log").read_bytes() and time.monotonic() < until_s:
            time.sleep(0.02)
        child = int((tmp_path / "log").read_text().split()[1])
        time.sleep(0.3)  # the leash is started after the engine
        agent.kill()
    assert _gone(pid)
    assert _gone(child)


def test_tail_puts_errors_first(tmp_path) -> None:
    log = tmp_path / "log"
    log.write_text("ValueError: the cause\n" + "noise\n" * 50 + "last\n")
    assert tail(log, 3).splitlines() == ["ValueError: the cause", "noise", "noise", "last"]
    assert tail(tmp_path / "none", 3) == "(no log)"


def test_free_ports_differ() -> None:
    assert len(set(free_ports("127.0.0.1", 5))) == 5


async def test_without_a_log_it_speaks_through_the_agents_own_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    engine = await start_engine(["sh", "-c", "echo out; echo err >&2; exit 3"], os.environ, None)
    assert await engine.wait() == 3
    await engine.stop()
    assert capfd.readouterr().out.split() == ["out", "err"]
    assert "above" in engine.last_lines()
