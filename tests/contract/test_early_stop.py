"""SIGTERM while a service is still being loaded ends it as later ones do: status 0, and nothing is left."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support.commands import Running
from tests.support.servers import free_port

pytestmark = pytest.mark.contract

SERVICES = {
    "frontend": ["frontend", "--port", "0"],
    "planner": ["planner", "--port", "0"],
    "worker": ["worker", "--role", "decode", "--engine", "sim", "--model", "m"],
}
AWAY = ["--etcd", "127.0.0.1:1", "--nats", "nats://127.0.0.1:1"]


def _catches_sigterm(pid: int) -> bool:
    """By the kernel's mask of the signals for which a process has a handler (proc(5), SigCgt)."""
    status = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("later_s", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", [*SERVICES, "frontends"])
def test_a_stop_that_comes_early_is_a_clean_end(name: str, later_s: float, tmp_path: Path) -> None:
    argv = SERVICES.get(name) or ["frontend", "--port", str(free_port()), "--processes", "2"]
    running = Running([*argv, *AWAY], tmp_path / "log")
    until_s = time.monotonic() + 30
    while not _catches_sigterm(running.process.pid):
        assert time.monotonic() < until_s
        time.sleep(0.002)
    time.sleep(later_s)  # any moment is as good as another
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert running.end() == 0, running.log
    _, left = psutil.wait_procs(children, timeout=20)
    assert not left
