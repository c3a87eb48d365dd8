"""Starting and stopping: interrupted, failing, twice, after a supervisor was killed."""

import os
import signal
import socket
import subprocess
import time

import psutil
import pytest

from tests.e2e.local_stack import LocalStack, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(300)]

SIM = ("--engine", "sim")


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.parametrize(
    ("line", "presses"),
    [
        ("model: waits", 1),
        ("etcd: waits", 2),
        ("nats: done", 1),
        ("planner: waits", 2),
        ("p0: waits", 1),
        ("frontend: done", 1),
        ("planner: done", 2),
    ],
)
def test_ctrl_c_during_any_step_of_the_start_leaves_nothing(
    sim_stack: LocalStack, line: str, presses: int
) -> None:
    """With real engines, which are still loading by then."""
    if line.startswith("model"):  # else the model that other tests prepared is used
        sim_stack.environment["XDG_CACHE_HOME"] = str(sim_stack.home / "cache")
    up = subprocess.Popen(
        sim_stack.command("up", "--port", str(sim_stack.port)),
        env=sim_stack.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert up.stdout is not None
    seen = []
    for text in up.stdout:
        seen.append(text)
        if text.startswith(line):
            break
    else:
        pytest.fail(f"{line!r} was never shown:\n{''.join(seen)}")
    os.killpg(up.pid, signal.SIGINT)  # as a terminal does
    for text in up.stdout:
        if text.startswith("stop: waits") and presses == 2:
            os.killpg(up.pid, signal.SIGINT)
    assert up.wait(timeout=60) == 130
    assert sim_stack.nothing_is_left()
    assert _port_is_free(sim_stack.port)
    assert not list((sim_stack.home / "cache").glob("ppd/models/.*-*"))


def test_detached_it_serves_refuses_a_second_and_goes_down_without_trace(sim_stack: LocalStack) -> None:
    up = sim_stack.up(*SIM, "--placement", "1P1D1R")
    assert up.returncode == 0, up.stdout + up.stderr
    assert f"{sim_stack.url}/v1" in up.stdout
    assert sorted(sim_stack.pids()) == ["d0", "etcd", "frontend", "nats", "p0", "planner", "r0"]
    status = sim_stack.status()
    assert status["ok"]
    assert {worker["record"]["role"] for worker in status["workers"]} == {"prefill", "decode", "replica"}
    second = sim_stack.up(*SIM)
    assert second.returncode == 1
    assert f"a stack runs here already: {sim_stack.url} (1P1D1R, ready)" in second.stderr
    assert sim_stack.ppd("down").returncode == 0
    assert sim_stack.nothing_is_left()
    assert _port_is_free(sim_stack.port)


@pytest.mark.parametrize("flags", [(), ("--detach",)], ids=["in front", "detached"])
@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 2.0])
def test_down_stops_what_has_only_just_begun(
    sim_stack: LocalStack, flags: tuple[str, ...], after_s: float
) -> None:
    up = subprocess.Popen(
        sim_stack.command("up", "--port", str(sim_stack.port), *SIM, *flags),
        env=sim_stack.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    eventually(sim_stack.home.joinpath("lock").exists)
    time.sleep(after_s)
    down = sim_stack.ppd("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert down.stdout == f"stopped 1P1D at {sim_stack.url}\n"
    output, _ = up.communicate(timeout=60)
    assert up.returncode in (130, 0), output  # 0: it was up by then
    assert "Traceback" not in output
    assert sim_stack.nothing_is_left()
    assert _port_is_free(sim_stack.port)


def test_an_engine_that_cannot_start_is_named_with_the_end_of_its_log(sim_stack: LocalStack) -> None:
    up = sim_stack.up(*SIM, "--", "--no-such-flag")
    assert up.returncode == 1
    assert "ppd up: p0 " in up.stdout or "ppd up: d0 " in up.stdout
    assert "unrecognized arguments: --no-such-flag" in up.stdout
    assert sim_stack.nothing_is_left()


def test_a_taken_port_is_named_with_its_holder(sim_stack: LocalStack) -> None:
    with socket.create_server(("127.0.0.1", sim_stack.port)):
        up = sim_stack.up(*SIM)
    assert up.returncode == 1
    assert f"port {sim_stack.port} is taken by {psutil.Process().name()} (pid" in up.stdout
    assert f"(pid {os.getpid()})" in up.stdout
    assert sim_stack.nothing_is_left()


@pytest.mark.parametrize(
    "args", [("--placement", "1P"), ("--policy", "x"), ("--hardware", "x"), ("--port", "0"), ("--bogus",)]
)
def test_wrong_flags_are_refused_before_anything_starts(sim_stack: LocalStack, args: tuple[str, ...]) -> None:
    up = sim_stack.ppd("up", *SIM, *args)
    assert up.returncode == 2
    assert up.stderr
    assert not sim_stack.home.joinpath("logs").exists()


def test_a_killed_supervisor_takes_its_processes_along_and_another_up_works(sim_stack: LocalStack) -> None:
    assert sim_stack.up(*SIM).returncode == 0
    old = set(sim_stack.processes())
    os.kill(sim_stack.state()["supervisor"]["pid"], signal.SIGKILL)
    assert sim_stack.ppd("status").returncode == 1
    eventually(lambda: not sim_stack.processes(), within_s=60)
    again = sim_stack.up(*SIM)
    assert again.returncode == 0, again.stdout + again.stderr
    assert not old & set(sim_stack.processes())
    os.kill(sim_stack.state()["supervisor"]["pid"], signal.SIGKILL)
    # At once: what still lives is ended by `down`, whoever its parent is.
    assert sim_stack.ppd("down").returncode == 0
    assert sim_stack.nothing_is_left()


def test_a_restart_keeps_the_table(sim_stack: LocalStack) -> None:
    assert sim_stack.up(*SIM).returncode == 0
    tables = eventually(lambda: sim_stack.status()["tables"])
    assert sim_stack.ppd("down").returncode == 0
    assert sim_stack.up(*SIM).returncode == 0
    kept = sim_stack.status()["tables"]
    assert [table["version"] for table in kept] >= [table["version"] for table in tables]
