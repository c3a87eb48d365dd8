import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from ppd.runtime import programs
from ppd.runtime.programs import Done, ProgramError

pytestmark = pytest.mark.unit


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def _until_gone(pid: int) -> None:
    until_s = time.monotonic() + 30
    while not _gone(pid):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.02)


async def test_status_and_output_are_returned() -> None:
    done = await programs.run(["sh", "-c", "echo out; echo why >&2; exit 3"], 30)
    assert (done.status, done.out, done.err) == (3, "out\n", "why\n")
    assert done.last_line == "why"


async def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(ProgramError, match="no-such-program: No such file"):
        await programs.run(["no-such-program"], 30)


async def test_at_the_deadline_the_whole_group_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}; wait"
    with pytest.raises(ProgramError, match="sh did not end within 1 s"):
        await programs.run(["sh", "-c", script], 1)
    await _until_gone(int(pid_file.read_text()))


async def test_a_cancelled_caller_leaves_no_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    task = asyncio.create_task(programs.run([sys.executable, "-c", code], 600))
    until_s = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until_gone(int(pid_file.read_text()))


async def test_the_environment_can_be_given() -> None:
    env = {"PATH": os.environ["PATH"], "ONLY": "this"}
    assert (await programs.run(["sh", "-c", "echo $ONLY$HOME"], 30, env)).out == "this\n"


@pytest.mark.parametrize(
    ("done", "line"),
    [(Done(1, "a\nb\n\n", ""), "b"), (Done(-9, "", ""), "exit status -9"), (Done(1, "a", "x\n y \n"), "y")],
)
def test_the_last_line_names_the_cause(done: Done, line: str) -> None:
    assert done.last_line == line
