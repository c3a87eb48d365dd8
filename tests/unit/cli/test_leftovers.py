import os
import subprocess
import sys
import uuid

import psutil
import pytest

from ppd.cli.stack import leftovers

pytestmark = pytest.mark.unit

# A process that starts another in a session of its own, which says its pid once it is all there (until then
# its environment cannot be read), and takes no notice of SIGTERM.
_PARENT = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
time.sleep(60)
"""


def _spawn(stack_id: str, member: str) -> tuple[subprocess.Popen[str], int]:
    marks = {leftovers.STACK_ENV: stack_id, leftovers.MEMBER_ENV: member}
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], env={**os.environ, **marks}, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_children_in_sessions_of_their_own_are_found_and_ended() -> None:
    stack_id = uuid.uuid4().hex
    parent, child = _spawn(stack_id, "p0")
    assert {process.pid for process in leftovers.find(stack_id)} == {parent.pid, child}
    assert leftovers.sweep(stack_id) == 2
    assert parent.wait() == -9
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_an_orphan_is_found_by_its_member() -> None:
    stack_id = uuid.uuid4().hex
    parent, child = _spawn(stack_id, "p0")
    other, other_child = _spawn(stack_id, "d0")
    parent.kill()
    parent.wait()
    assert leftovers.sweep(stack_id, "p0") == 1
    assert {process.pid for process in leftovers.find(stack_id)} == {other.pid, other_child}
    leftovers.sweep(stack_id)
    other.wait()
    assert child not in psutil.pids() or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_another_stack_is_left_alone() -> None:
    mine, theirs = uuid.uuid4().hex, uuid.uuid4().hex
    parent, _ = _spawn(theirs, "p0")
    assert leftovers.sweep(mine) == 0
    assert parent.poll() is None
    leftovers.sweep(theirs)
    parent.wait()
