"""Engines that hang without dying: they get no turns, and what was asked of them moves."""

import asyncio
from typing import Any

import pytest

from controlplane.engines.worker import Patience, Worker
from ppd.core.names import Role
from ppd.core.records import WorkerLoad
from tests.support.answers import TEXT, events, words
from tests.unit.controlplane.conftest import P_2D, P_D, Stack, record, running
from tests.unit.controlplane.fakes import FakeEngine, Fault

pytestmark = pytest.mark.unit

SOON: dict[str, Any] = {"suspect_s": 0.3}


def report(stack: Stack, name: str, **fields: float) -> None:
    """As its agent's, that came this moment."""
    now_s = asyncio.get_running_loop().time()
    stack.frontend.cluster.report(WorkerLoad(worker_id=f"{name}-1", **fields), now_s)


async def health(stack: Stack) -> tuple[int, dict[str, Any]]:
    async with stack.http.get(stack.url + "/health") as response:
        return response.status, await response.json()


async def suspected(stack: Stack, *names: str) -> None:
    async with asyncio.timeout(20):
        while set(stack.frontend.cluster.suspects("m")) != set(names):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("fields", [{"silent_s": 11.0}, {"stuck_s": 31.0}])
async def test_a_stream_on_the_only_d_goes_on_at_p(fields: dict[str, float], after: int) -> None:
    """Within a moment of the agent's word, not after a minute's silence."""
    async with running(P_D, **SOON, idle_s=0.6) as stack:
        stack.engines["d0"].faults.append(Fault("stall", after=after))
        async with asyncio.timeout(10), await stack.chat("hi", stream=True) as response:
            await asyncio.sleep(0.4)
            report(stack, "d0", **fields)
            assert words(events(await response.text())) == TEXT
        await suspected(stack, "d0")
        status, said = await health(stack)
        assert (status, said["status"]) == (200, "degraded")
        assert said["models"]["m"]["missing"] == ["decode"]
        assert list(said["models"]["m"]["suspect"]) == ["d0"]
        assert any("d0 is suspect" in why for why in said["why"])
        assert (await stack.ask("more"))[:2] == ("replica", "no-decode")
        report(stack, "d0")
        await suspected(stack)
        assert (await stack.ask("and more"))[0] == "p-d"
        assert (await health(stack))[1]["models"]["m"]["missing"] == []


async def test_where_nobody_else_serves_it_is_said_at_once() -> None:
    async with running({"r0": Role.REPLICA}, **SOON) as stack:
        report(stack, "r0", silent_s=11.0)
        await suspected(stack, "r0")
        assert (await health(stack))[0] == 503
        async with stack.http.get(stack.url + "/ready") as response:
            assert response.status == 503
        async with await stack.chat("hi") as response:
            assert response.status == 503
            assert response.headers["retry-after"]
        report(stack, "r0")
        await suspected(stack)
        assert (await stack.ask("hi"))[0] == "replica"


async def test_a_prefill_on_a_suspect_p_is_taken_by_d() -> None:
    async with running(P_D, **SOON) as stack:
        stack.engines["p0"].faults.append(Fault("stall"))
        asking = asyncio.create_task(stack.ask("hi"))
        await asyncio.sleep(0.4)
        report(stack, "p0", silent_s=11.0)
        route, reason, answer = await asyncio.wait_for(asking, 10)
        assert (route, reason) == ("d-local", "prefill-failed")
        assert answer["choices"][0]["message"]["content"] == TEXT


async def test_an_engine_from_which_bytes_come_is_not_suspect() -> None:
    async with running(P_D, **SOON) as stack:
        stack.engines["d0"].chunk_gap_s = 0.1
        async with await stack.chat("hi", stream=True) as response:
            for _ in range(4):
                report(stack, "d0", silent_s=11.0)
                await asyncio.sleep(0.1)
                assert stack.frontend.cluster.suspects("m") == {}
            assert words(events(await response.text())) == TEXT


async def test_who_left_the_registry_does_not_keep_its_streams() -> None:
    """A host that is cut off: its lease ends, and its connections stay open."""
    async with running(P_2D, **SOON) as stack:
        for name in ("d0", "d1"):
            stack.engines[name].faults.append(Fault("stall", after=3))
        async with asyncio.timeout(10), await stack.chat("hi", stream=True) as response:
            name = response.headers["x-ppd-decode"]
            other = "d1" if name == "d0" else "d0"
            stack.engines[other].faults.clear()
            left = {"p0": Role.PREFILL, other: Role.DECODE}
            records = {f"{each}-1": record(stack.engines[each], role, each) for each, role in left.items()}
            stack.frontend.fleet.update(records)
            assert words(events(await response.text())) == TEXT
        async with asyncio.timeout(10):
            while stack.frontend.cluster._leaving:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_who_left_and_reports_keeps_them_and_may_come_back() -> None:
    """etcd lost its record; the engine works on."""
    async with running(P_D, **SOON) as stack:
        cluster = stack.frontend.cluster
        worker, records = cluster.workers["d0-1"], {each.id: each.record for each in cluster.workers.values()}
        stack.engines["d0"].faults.append(Fault("stall", after=3))
        async with await stack.chat("hi", stream=True) as response:
            stack.frontend.fleet.update({"p0-1": records["p0-1"]})
            for _ in range(6):
                report(stack, "d0")
                await asyncio.sleep(0.1)
            assert worker.pool.waits_s(asyncio.get_running_loop().time()) > 0.3
            stack.frontend.fleet.update(records)
            assert cluster.workers["d0-1"] is worker
            assert not cluster._leaving
            response.close()


class FakePool:
    """Of a pool, what suspicion looks at."""

    def __init__(self, waits_s: float, heard_s: float) -> None:
        self._waits_s, self.heard_s = waits_s, heard_s

    def waits_s(self, now_s: float) -> float:
        return self._waits_s


@pytest.mark.parametrize(
    ("load", "flow", "waits_s", "heard_ago_s", "suspect"),
    [
        (None, True, 11.0, 11.0, True),
        (None, False, 11.0, 11.0, False),  # without NATS no agent is heard of
        (None, True, 11.0, 1.0, False),  # others' bytes come
        (None, True, float("-inf"), float("inf"), False),  # nothing is asked of it
        ({}, True, 25.0, 25.0, False),  # a long queue: its agent says that it works
        ({"silent_s": 9.0}, True, 9.0, 9.0, False),
        ({"silent_s": 10.0}, False, 1.0, 10.0, True),
        ({"silent_s": 10.0}, True, float("-inf"), float("inf"), True),
        ({"stuck_s": 10.0}, True, 10.0, 10.0, False),  # one long step
        ({"stuck_s": 30.0}, True, 30.0, 30.0, True),
    ],
)
def test_what_makes_a_suspect(
    load: dict[str, float] | None, flow: bool, waits_s: float, heard_ago_s: float, suspect: bool
) -> None:
    pool = FakePool(waits_s, 1000.0 - heard_ago_s)
    worker = Worker(record(FakeEngine("d0"), Role.DECODE, "d0"), pool)  # type: ignore[arg-type]
    if load is not None:
        worker.report(WorkerLoad(worker_id="d0-1", **load), 999.0)
    assert bool(worker.trouble(1000.0, Patience(), flow)) is suspect
