"""Each turn counts once, whatever happens to the planners and to what was in flight."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from ppd.core.names import Role
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from tests.support.planners import PlannerProcess, add_worker, ask, eventually, record_turns, turn

pytestmark = pytest.mark.contract


async def pair(etcd: Etcd, namespace: str) -> None:
    await add_worker(etcd, namespace, "p0", Role.PREFILL)
    await add_worker(etcd, namespace, "d0", Role.DECODE)


def leads(bus: Bus, namespace: str, pid: int | None = None) -> Callable[[], Any]:
    async def check() -> Any:
        status = await ask(bus, namespace, "status")
        return status if pid is None or f"-{pid}-" in status["planner"] else None

    return check


def counted(bus: Bus, namespace: str, turns: int) -> Callable[[], Any]:
    """Exactly `turns`, and nothing waiting. More is a failure that no waiting mends."""

    async def check() -> Any:
        status = await ask(bus, namespace, "status")
        assert status["turns"] <= turns, "a turn was counted twice"
        return status if status["turns"] == turns and status["lag"] == 0 else None

    return check


async def test_kill_9_of_the_leader_amid_turns_loses_none_and_doubles_none(
    start_planner: Callable[..., PlannerProcess], etcd: Etcd, bus: Bus, namespace: str
) -> None:
    await pair(etcd, namespace)
    first = start_planner()
    await eventually("the first leads", leads(bus, namespace, first.pid))
    second = start_planner()
    sent = 0
    recording = asyncio.Event()

    async def record() -> None:
        nonlocal sent
        while not recording.is_set():
            await record_turns(bus, namespace, [turn(sent + n) for n in range(20)])
            sent += 20

    async def some_counted() -> Any:
        return (await ask(bus, namespace, "status"))["turns"] >= 200

    async with asyncio.TaskGroup() as group:  # a record that cannot be sent fails the test
        group.create_task(record())
        await eventually("turns are being counted", some_counted)
        first.kill()  # with turns fetched and not acknowledged, and others saved and not acknowledged
        status = await eventually("the second leads within 15 s", leads(bus, namespace, second.pid), 15)
        assert status["role"] == "leader"
        recording.set()
    await eventually(f"{sent} turns counted once each", counted(bus, namespace, sent), 60)


async def test_an_orderly_stop_hands_over_and_what_was_acknowledged_stays_counted(
    start_planner: Callable[..., PlannerProcess], etcd: Etcd, bus: Bus, namespace: str
) -> None:
    await pair(etcd, namespace)
    first = start_planner()
    await eventually("the first leads", leads(bus, namespace, first.pid))
    await record_turns(bus, namespace, [turn(n) for n in range(100)])
    await eventually("counted", counted(bus, namespace, 100))
    second = start_planner()
    assert first.stop() == 0
    await eventually("the second leads", leads(bus, namespace, second.pid))
    await record_turns(bus, namespace, [turn(n) for n in range(50)])
    await eventually("150 counted", counted(bus, namespace, 150))


async def test_a_leader_that_was_asleep_neither_saves_nor_publishes_when_it_wakes(
    start_planner: Callable[..., PlannerProcess], etcd: Etcd, bus: Bus, namespace: str
) -> None:
    await pair(etcd, namespace)
    sleeper = start_planner()
    await eventually("it leads", leads(bus, namespace, sleeper.pid))
    await record_turns(bus, namespace, [turn(n) for n in range(60)])
    await eventually("60 counted", counted(bus, namespace, 60))
    sleeper.signal(signal.SIGSTOP)
    await record_turns(bus, namespace, [turn(n) for n in range(60, 100)])
    other = start_planner()
    await eventually("the other leads", leads(bus, namespace, other.pid), 60)
    version = (await ask(bus, namespace, "freeze"))["version"]
    sleeper.signal(signal.SIGCONT)
    await record_turns(bus, namespace, [turn(n) for n in range(100, 160)])

    async def calm() -> Any:
        status = await counted(bus, namespace, 160)()
        return status if status and f"-{other.pid}-" in status["planner"] else None

    status = await eventually("160 counted by the other", calm, 60)
    assert status["tables"][0]["version"] == version
    assert status["tables"][0]["frozen"]
