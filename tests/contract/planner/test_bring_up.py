"""A planner alone: a first table for what runs, turns counted, and the truth in `status`."""

import re
from collections.abc import Callable

import aiohttp
import pytest

from ppd.core.names import Role, table_key
from ppd.core.records import TableSnapshot, decode
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from tests.support.planners import MODEL, PlannerProcess, add_worker, ask, eventually, record_turns, turn

pytestmark = pytest.mark.contract


async def test_it_publishes_a_seed_for_the_running_placement_and_counts_turns(
    start_planner: Callable[..., PlannerProcess], etcd: Etcd, bus: Bus, namespace: str
) -> None:
    planner = start_planner()
    await add_worker(etcd, namespace, "p0", Role.PREFILL)
    await add_worker(etcd, namespace, "d0", Role.DECODE)

    async def table() -> TableSnapshot | None:
        kv = await bus.js.key_value(f"PPD_TABLE_{namespace}")
        entry = await kv.get(table_key(MODEL, "1P1D"))
        return decode(entry.value or b"", TableSnapshot)

    published = await eventually("a table for 1P1D", table)
    assert (published.model, published.placement, published.version) == (MODEL, "1P1D", 1)
    assert "seed h100-llama-3.1-8b-2P2D" in published.source

    got = await ask(bus, namespace, "table.get", {"model": MODEL, "placement": "1P1D"})
    assert got["version"] == 1
    missing = await ask(bus, namespace, "table.get", {"model": MODEL, "placement": "9P9D"})
    assert missing["code"] == "404"
    assert (await ask(bus, namespace, "table.get", {"model": 3}))["code"] == "400"

    await record_turns(bus, namespace, [turn(n) for n in range(250)])
    await bus.nc.publish(f"ppd.{namespace}.turns.x", b"not a record")

    async def counted() -> dict[str, object] | None:
        status = await ask(bus, namespace, "status")
        return status if status["turns"] == 250 and status["lag"] == 0 else None

    status = await eventually("250 turns counted", counted)
    assert status["role"] == "leader"
    assert status["etcd"]
    assert status["nats"]
    assert status["tables"][0]["turns"] == 250
    assert planner.stop() == 0


async def test_a_standby_tells_what_it_is_and_both_serve_metrics(
    start_planner: Callable[..., PlannerProcess], etcd: Etcd, bus: Bus, namespace: str
) -> None:
    planners = [start_planner(), start_planner()]

    async def roles() -> object:
        found = [await ask(bus, namespace, f"status.{await planner_id(each)}") for each in planners]
        led = found[0]["leader"]
        ready = all(each["leader"] == led and not each["trouble"] for each in found)
        return found if led and ready else None

    found = await eventually("one leads, and both know", roles)
    assert sorted(each["role"] for each in found) == ["leader", "standby"]
    async with aiohttp.ClientSession() as session:
        for planner in planners:
            url = re.findall(r"http://\S+/metrics", planner.log)[0]
            async with session.get(url) as answer:
                assert "ppd_planner_leader" in await answer.text()
            async with session.get(url.replace("/metrics", "/ready")) as answer:
                assert answer.status == 200


async def planner_id(planner: PlannerProcess) -> str:
    async def logged() -> str | None:
        found = re.findall(r"planner: planner (\S+):", planner.log)
        return found[0] if found else None

    return str(await eventually("its id in the log", logged))
