"""Tables and learners against a NATS server that takes small messages only."""

import asyncio
from collections.abc import Callable

import pytest

from ppd.core.names import table_key
from ppd.core.records import TableSnapshot, decode
from tests.support.planner_stack import Stack
from tests.support.planners import MODEL, PlannerProcess, ask, eventually, record_turns, turn
from tests.support.servers import EtcdServer, NatsServer

pytestmark = pytest.mark.contract

KEY = table_key(MODEL, "1P1D")


async def test_a_table_and_a_learner_that_fit_only_when_compressed_are_published_and_saved(
    fresh_etcd: EtcdServer,
    fresh_nats: Callable[..., NatsServer],
    namespace: str,
    start_planner: Callable[..., PlannerProcess],
) -> None:
    stack = Stack(fresh_etcd, fresh_nats("max_payload: 16384"), namespace, start_planner)
    planner = await stack.lead()
    try:
        await record_turns(stack.bus, namespace, [turn(n) for n in range(40)])
        await stack.until("40 counted", lambda status: status["turns"] == 40)
        stored = await stack.bus.js.key_value(f"PPD_TABLE_{namespace}")
        data = (await stored.get(KEY)).value or b""
        assert data[:1] != b"{"
        assert len(decode(data, TableSnapshot).cells) > 100
        history = await ask(stack.bus, namespace, "table.history")
        assert history[0]["version"] == 1
        planner.kill()
        stack.start_planner()
        status = await stack.until("an heir that knows the turns", lambda status: status["turns"] == 40)
        assert status["tables"][0]["learned"]["samples"] == 40
        assert status["trouble"] == ""
    finally:
        await stack.bus.close()


async def test_a_table_beyond_the_limit_is_named_with_its_size_and_what_to_do(
    fresh_etcd: EtcdServer,
    fresh_nats: Callable[..., NatsServer],
    namespace: str,
    start_planner: Callable[..., PlannerProcess],
) -> None:
    server = fresh_nats("max_payload: 4096")
    stack = Stack(fresh_etcd, server, namespace, start_planner)
    fresh_etcd.start()
    server.start()
    await stack.add_pair()
    planner = stack.start_planner()
    await stack.bus.connect()
    try:
        status = await stack.until("the reason", lambda status: bool(status["trouble"]))
        assert status["tables"] == []
        assert status["trouble"].startswith(f"the table of {MODEL} on 1P1D: ")
        for part in ("bytes", "compressed", "max_payload 4096", "raise max_payload"):
            assert part in status["trouble"]
        await asyncio.sleep(1)  # several rounds of the term
        assert planner.log.count("cannot publish") == 1
        server.kill()
        server.options = ["max_payload: 65536"]
        server.start()

        async def healed() -> bool:
            status = await stack.status()
            return bool(status["tables"]) and not status["trouble"]

        await eventually("the table, once the limit is raised", healed, 60)
    finally:
        await stack.bus.close()
