import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ppd.cli.stack.state import Lock, MemberState, Phase, StackState, StateFile, alive

pytestmark = pytest.mark.unit


def _me() -> MemberState:
    me = psutil.Process()
    return MemberState(name="me", pid=me.pid, started_unix_s=me.create_time())


def test_a_process_with_a_recycled_pid_is_not_taken_for_the_old_one() -> None:
    assert alive(_me())
    old = _me()
    old.started_unix_s -= 60
    assert not alive(old)


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    state = MemberState(name="child", pid=child.pid, started_unix_s=psutil.Process(child.pid).create_time())
    psutil.wait_procs([psutil.Process(child.pid)], timeout=0)
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not alive(state)
    child.wait()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    assert file.read() is None
    state = StackState(stack_id="x", supervisor=_me(), phase=Phase.READY, members=[_me()])
    file.write(state)
    assert file.read() == state
    file.remove()
    assert file.read() is None


def test_a_torn_file_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"stack_id": "x", "superv')
    assert StateFile(tmp_path).read() is None


def test_the_lock_is_held_by_one_and_free_after_a_kill(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time; from ppd.cli.stack.state import Lock;"
        "lock = Lock(pathlib.Path(sys.argv[1])); print(lock.take(), flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    lock = Lock(tmp_path)
    assert not lock.take()
    assert lock.taken()
    other.kill()
    other.wait()
    assert not lock.taken()
    assert lock.take()
    lock.release()


def test_to_ask_about_the_lock_does_not_keep_anybody_from_it(tmp_path: Path) -> None:
    assert not Lock(tmp_path / "none").taken()
    code = (
        "import sys, pathlib; from ppd.cli.stack.state import Lock; lock = Lock(pathlib.Path(sys.argv[1]));"
        "print(flush=True)\nwhile True: lock.taken()"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    for _ in range(20):
        lock = Lock(tmp_path)
        assert lock.take()
        lock.release()
    other.kill()
    other.wait()
