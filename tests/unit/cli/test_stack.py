"""The supervisor over small real processes."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ppd.cli.stack import leftovers, plan, ports, probes
from ppd.cli.stack.stack import Stack
from ppd.cli.stack.state import BusyError, Phase, StackState, StateFile, running
from tests.unit.cli.stacks import events, failing, runs, service, spec

pytestmark = pytest.mark.unit

NAMES = ["etcd", "nats", "planner", "p0", "frontend"]
KINDS = [plan.Kind.ETCD, plan.Kind.NATS, plan.Kind.PLANNER, plan.Kind.WORKER, plan.Kind.FRONTEND]
STOP_ORDER = ["frontend", "p0", "planner", "nats", "etcd"]


class FakeProgress:
    """Keeps what it is told, and calls back when a step begins or the stack is ready."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.served = asyncio.Event()
        self.on_begin: dict[str, int] = {}  # step -> signal for this process

    def begin(self, step: str, waits_for: str) -> None:
        if step in self.on_begin:
            os.kill(os.getpid(), self.on_begin[step])

    def note(self, step: str, text: str) -> None: ...

    def end(self, step: str, ok: bool, text: str = "") -> None: ...

    def say(self, text: str) -> None:
        self.lines.append(text)

    def ready(self, text: str) -> None:
        self.lines.append(text)
        self.served.set()

    def close(self) -> None: ...


class Fixture:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.progress = FakeProgress()
        self.members = [service(name, kind, folder) for name, kind in zip(NAMES, KINDS, strict=True)]
        monkeypatch.setattr(
            plan, "make", lambda *_: plan.StackPlan(tuple(self.members), "http://x", "e", "n")
        )

        async def servable(*_: object) -> bool:
            return True

        monkeypatch.setattr(probes, "servable", servable)

    def stack(self) -> Stack:
        port = ports.free_ports(1)[0]
        return Stack(spec(port), self.folder, self.progress, lambda state: f"serving {state.model}")

    def state(self) -> StackState:
        state = StateFile(self.folder).read()
        assert state is not None
        return state


@pytest.fixture
def fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fixture:
    return Fixture(tmp_path, monkeypatch)


async def _until(what: Callable[[], bool], within_s: float = 20) -> None:
    async with asyncio.timeout(within_s):
        while not what():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_it_serves_says_so_and_stops_in_order(fixture: Fixture) -> None:
    task = asyncio.create_task(fixture.stack().run())
    await fixture.progress.served.wait()
    state = fixture.state()
    assert state.phase == Phase.READY
    assert [member.name for member in state.members] == NAMES
    assert all(runs(member.pid) and member.phase == Phase.READY for member in state.members)
    assert fixture.progress.lines[-1].endswith("serving m")
    os.kill(os.getpid(), signal.SIGINT)
    assert await task == 0
    assert events(fixture.folder)[-5:] == [f"ended {name}" for name in STOP_ORDER]
    assert not any(runs(member.pid) for member in state.members)
    assert StateFile(fixture.folder).read() is None
    assert leftovers.find(state.stack_id) == []


async def test_a_process_that_dies_comes_back_alone(fixture: Fixture) -> None:
    task = asyncio.create_task(fixture.stack().run())
    await fixture.progress.served.wait()
    for name in NAMES:
        before = {member.name: member.pid for member in fixture.state().members}
        (fixture.folder / name).unlink()
        os.kill(before[name], signal.SIGKILL)
        await _until(lambda: f"{name} is back" in "\n".join(fixture.progress.lines))  # noqa: B023
        state = fixture.state()
        after = {member.name: member.pid for member in state.members}
        assert {other for other in NAMES if after[other] != before[other]} == {name}
        assert all(member.phase == Phase.READY for member in state.members)
        assert any(line.startswith(f"{name} was killed by SIGKILL") for line in fixture.progress.lines)
    assert [member.restarts for member in fixture.state().members] == [1] * 5
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0


@pytest.mark.parametrize("step", NAMES)
async def test_a_signal_during_any_step_of_the_start_leaves_nothing(fixture: Fixture, step: str) -> None:
    fixture.progress.on_begin = {step: signal.SIGINT}
    stack = fixture.stack()
    assert await stack.run() == 130
    assert not fixture.progress.served.is_set()
    assert StateFile(fixture.folder).read() is None
    assert leftovers.find(stack._state.stack_id) == []


async def test_a_part_that_fails_is_named_with_its_log_and_the_rest_stopped(fixture: Fixture) -> None:
    fixture.members[3] = failing("p0", plan.Kind.WORKER)
    stack = fixture.stack()
    assert await stack.run() == 1
    message = fixture.progress.lines[-1]
    assert message.startswith("ppd up: p0 exited with status 3")
    assert "| the disk is full" in message
    assert leftovers.find(stack._state.stack_id) == []


async def test_a_second_signal_does_not_wait_for_one_that_drains(fixture: Fixture) -> None:
    fixture.members[3] = service("p0", plan.Kind.WORKER, fixture.folder, slow=True)
    task = asyncio.create_task(fixture.stack().run())
    await fixture.progress.served.wait()
    os.kill(os.getpid(), signal.SIGINT)
    await _until(lambda: "ended frontend" in events(fixture.folder))
    os.kill(os.getpid(), signal.SIGINT)
    assert await task == 0
    assert "ended p0" not in events(fixture.folder)


async def test_two_in_one_folder_are_refused(fixture: Fixture) -> None:
    task = asyncio.create_task(fixture.stack().run())
    await fixture.progress.served.wait()
    assert running(fixture.folder) is not None
    with pytest.raises(BusyError, match="a stack runs here already: http://x"):
        await fixture.stack().run()
    assert all(runs(member.pid) for member in fixture.state().members)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await task == 0


async def test_a_taken_port_is_said_before_anything_starts(fixture: Fixture) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await Stack(spec(port), fixture.folder, fixture.progress, lambda _: "").run() == 1
    assert f"port {port} is taken by" in fixture.progress.lines[-1]
    assert events(fixture.folder) == []
    server.close()
