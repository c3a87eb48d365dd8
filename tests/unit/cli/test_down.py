"""`ppd down` and stacks that have only just begun."""

import subprocess
import sys
from pathlib import Path

import pytest

from ppd.cli import down
from ppd.cli.stack.state import Lock, MemberState, StackState, StateFile

pytestmark = pytest.mark.unit

# Holds the lock, says a second later who it is, and ends when it is told to.
_BEGINS = """
import pathlib, sys, time, psutil
from ppd.cli.stack.state import Lock, MemberState, StackState, StateFile
folder = pathlib.Path(sys.argv[1])
assert Lock(folder).take()
print(flush=True)
time.sleep(1)
if sys.argv[2] == "goes on":
    me = psutil.Process()
    member = MemberState(name="supervisor", pid=me.pid, started_unix_s=me.create_time())
    StateFile(folder).write(StackState(stack_id="none", supervisor=member, placement="1P1D", endpoint="http://x"))
    time.sleep(600)
"""


def begins(folder: Path, how: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", _BEGINS, str(folder), how], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PPD_HOME", str(tmp_path))
    return tmp_path


def test_a_stack_that_has_not_said_a_word_yet_is_stopped(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = begins(home, "goes on")
    assert down.main([]) == 0
    assert capsys.readouterr().out == "stopped 1P1D at http://x\n"
    assert process.wait(10) == -15
    assert StateFile(home).read() is None


def test_one_that_was_left_is_not_taken_for_the_one_that_begins(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = MemberState(name="supervisor", pid=2**22 + 1, started_unix_s=1)
    StateFile(home).write(StackState(stack_id="old", supervisor=dead, placement="9R", endpoint="http://old"))
    process = begins(home, "goes on")
    assert down.main([]) == 0
    assert capsys.readouterr().out == "stopped 1P1D at http://x\n"
    process.wait(10)


def test_one_that_gives_up_by_itself_was_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = begins(home, "gives up")
    assert down.main([]) == 0
    assert capsys.readouterr().out == "no stack runs here\n"
    process.wait(10)


def test_where_nothing_ever_ran_nothing_is_made(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PPD_HOME", str(home / "none"))
    assert down.main([]) == 0
    assert capsys.readouterr().out == "no stack runs here\n"
    assert not (home / "none").exists()
    assert not Lock(home / "none").taken()
