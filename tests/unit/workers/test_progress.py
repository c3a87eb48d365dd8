"""NIXL's progress thread does not spin."""

import subprocess
import sys

import pytest

pytest.importorskip("nixl")
pytestmark = pytest.mark.unit

# An agent in a process of its own, told of by the share of a core that it takes while nothing happens.
_IDLE = """
import sys, time
from workers.connector.progress import sleep_between_polls
sleep_between_polls(int(sys.argv[1]))
sleep_between_polls(int(sys.argv[1]))
from nixl._api import nixl_agent, nixl_agent_config
agent = nixl_agent("test", nixl_agent_config(num_threads=4))
began_s, used_s = time.monotonic(), time.process_time()
while time.monotonic() - began_s < 30 and time.process_time() - used_s < 0.5:
    time.sleep(0.05)
    if time.monotonic() - began_s > 2 and sys.argv[1] != "0":
        break
print("used", time.process_time() - used_s)
"""


def _used_s(poll_ms: int) -> float:
    """CPU seconds of an idle agent: of two seconds, or until it has used half a second."""
    done = subprocess.run(
        [sys.executable, "-c", _IDLE, str(poll_ms)], capture_output=True, text=True, timeout=120, check=True
    )
    return float(done.stdout.rpartition("used")[2])


def test_an_idle_agent_takes_no_core() -> None:
    assert _used_s(0) >= 0.5, "NIXL has become patient by itself: this is not needed any more"
    assert _used_s(10) < 0.25
