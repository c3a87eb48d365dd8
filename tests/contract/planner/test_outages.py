"""etcd and NATS late, killed, emptied, full; tables spoilt: the planner says so and heals by itself."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from ppd.core.names import turns_subject
from ppd.core.records import TableSnapshot, decode, encode
from tests.support.planner_stack import KEY, Stack
from tests.support.planners import PlannerProcess, ask, eventually, record_turns, turn
from tests.support.servers import EtcdServer, NatsServer

pytestmark = pytest.mark.contract


@pytest.fixture
async def stack(
    fresh_etcd: EtcdServer,
    fresh_nats: Callable[..., NatsServer],
    namespace: str,
    start_planner: Callable[..., PlannerProcess],
) -> AsyncIterator[Stack]:
    made = Stack(fresh_etcd, fresh_nats(), namespace, start_planner)
    yield made
    await made.bus.close()


async def test_it_waits_for_servers_that_start_after_it(stack: Stack) -> None:
    planner = stack.start_planner()
    stack.etcd.start()
    await stack.add_pair()
    stack.nats.start()
    await stack.bus.connect()
    await stack.until("a table", lambda status: bool(status["tables"]))
    assert planner.stop() == 0


async def test_nats_killed_and_restarted_keeps_tables_and_counts(stack: Stack) -> None:
    await stack.lead()
    await record_turns(stack.bus, stack.namespace, [turn(n, turn=1) for n in range(40)])
    await stack.until("40 counted", lambda status: status["turns"] == 40)
    stack.nats.restart()
    await eventually("NATS is back for the test", stack.status)
    await record_turns(stack.bus, stack.namespace, [turn(n, turn=1) for n in range(40, 70)])
    status = await stack.until("70 counted", lambda s: s["turns"] >= 70 and not s["trouble"])
    assert status["turns"] == 70
    assert status["tables"][0]["version"] == 1


async def test_jetstream_that_lost_everything_gets_it_back_from_the_planner(stack: Stack) -> None:
    await stack.lead()
    await ask(stack.bus, stack.namespace, "weights.set", {"slo_class": "batch", "ttft": 1, "tpot": 9})
    await record_turns(stack.bus, stack.namespace, [turn(n, turn=1) for n in range(40)])
    await stack.until("40 counted", lambda status: status["turns"] == 40)
    stack.nats.kill()
    stack.nats.wipe()
    stack.nats.start()
    snapshot = await eventually("the table is back", stack.published, 60)
    assert snapshot.version == 2
    assert snapshot.weights["batch"] == (1, 9)

    async def record() -> bool:
        await record_turns(stack.bus, stack.namespace, [turn(100, turn=1)])
        return True

    await eventually("the stream is back", record)
    status = await stack.until("the old count goes on, with the new sequence", lambda s: s["turns"] >= 41)
    assert status["turns"] == 41


async def test_versions_go_on_where_jetstream_lost_them_while_no_planner_ran(stack: Stack) -> None:
    planner = await stack.lead()
    for weight in (2, 3, 4):
        await ask(
            stack.bus, stack.namespace, "weights.set", {"slo_class": "batch", "ttft": 1, "tpot": weight}
        )
    assert (await stack.published()).version == 4
    planner.kill()
    stack.nats.kill()
    stack.nats.wipe()
    stack.nats.start()
    stack.start_planner()
    snapshot = await eventually("a table again", stack.published, 60)
    assert snapshot.version == 5, "a frontend that serves by version 4 would refuse an older one"
    assert snapshot.source.startswith("seed")


async def test_a_deleted_bucket_comes_back(stack: Stack) -> None:
    await stack.lead()
    await stack.bus.js.delete_key_value(f"PPD_TABLE_{stack.namespace}")

    async def back() -> Any:
        info = await stack.bus.js.stream_info(f"KV_PPD_TABLE_{stack.namespace}")
        return info.state.messages

    await eventually("the bucket is back with its table", back)
    assert (await stack.published()).version == 1


@pytest.mark.parametrize("spoilt", ["garbage", "partial", "other-model", "no-cells", "bad-figure", "older"])
async def test_a_spoilt_table_is_refused_and_the_last_good_one_put_back(stack: Stack, spoilt: str) -> None:
    await stack.lead()
    await ask(stack.bus, stack.namespace, "weights.set", {"slo_class": "batch", "ttft": 1, "tpot": 9})
    good = await stack.published()
    data = encode(good)
    plain = msgspec.json.decode(data)
    plain["version"] = 9
    match spoilt:
        case "garbage":
            data = b"\xff\x00 not json"
        case "partial":
            data = data[: len(data) // 2]
        case "other-model":
            data = msgspec.json.encode(plain | {"model": "another/model"})
        case "no-cells":
            data = msgspec.json.encode(plain | {"cells": []})
        case "bad-figure":
            plain["cells"][0]["paths"]["p-d"]["ttft_ms"]["mean"] = -1.0
            data = msgspec.json.encode(plain)
        case "older":
            data = msgspec.json.encode(plain | {"version": 1})
    await stack.put(data)

    async def put_back() -> Any:
        found = await stack.bus.js.key_value(f"PPD_TABLE_{stack.namespace}")
        entry = await found.get(KEY)
        return entry.value != data and decode(entry.value or b"", TableSnapshot)

    assert await eventually("the good one is back", put_back) == good
    status = await stack.status()
    assert status["tables"][0]["version"] == good.version
    assert status["refused_tables"] == {}


async def test_etcd_away_for_longer_than_a_lease_is_survived_without_a_restart(stack: Stack) -> None:
    planner = await stack.lead()
    stack.etcd.kill()

    async def silent() -> bool:
        try:
            await stack.status()
        except Exception:  # no planner leads, so nobody answers
            return True
        return False

    await eventually("it stops leading by itself", silent)
    stack.etcd.start()
    status = await stack.until("it leads again", lambda status: status["role"] == "leader")
    assert f"-{planner.pid}-" in status["planner"]
    assert status["tables"][0]["version"] == 1


async def test_etcd_that_lost_everything_is_led_again_and_nothing_is_forgotten(stack: Stack) -> None:
    """Election tokens begin anew, lower than those that were saved."""
    await stack.lead()
    first = (await stack.status())["token"]
    await record_turns(stack.bus, stack.namespace, [turn(n, turn=1) for n in range(40)])
    await stack.until("40 counted", lambda status: status["turns"] == 40)
    stack.etcd.kill()
    stack.etcd.wipe()
    stack.etcd.start()
    await stack.until("it leads under a lower token", lambda status: 0 < status["token"] < first)
    await record_turns(stack.bus, stack.namespace, [turn(n, turn=1) for n in range(40, 70)])
    status = await stack.until("70 counted", lambda s: s["turns"] >= 70 and not s["trouble"])
    assert status["turns"] == 70


async def test_full_storage_is_said_and_healed(
    fresh_etcd: EtcdServer,
    fresh_nats: Callable[..., NatsServer],
    namespace: str,
    start_planner: Callable[..., PlannerProcess],
) -> None:
    server = fresh_nats()
    stack = Stack(fresh_etcd, server, namespace, start_planner)
    server.limit_storage("2MB")
    planner = start_planner("--turns-bytes", "1000000", etcd=fresh_etcd.address, nats=server.url)
    fresh_etcd.start()
    server.start()
    await stack.add_pair()
    await stack.bus.connect()
    await stack.until("a table", lambda status: bool(status["tables"]))
    kv = await stack.bus.js.create_key_value(bucket="FILLER")

    async def full() -> bool:
        try:
            await kv.put(f"k{stack.bus.nc.stats['out_msgs']}", b"x" * 100_000)
        except Exception:  # no room any more
            return True
        return False

    await eventually("the store is full", full)
    asked = await ask(stack.bus, namespace, "freeze")
    assert asked["code"] == "503"
    await stack.bus.js.delete_key_value("FILLER")

    async def frozen() -> Any:
        return (await ask(stack.bus, namespace, "freeze")).get("frozen")

    assert await eventually("there is room again", frozen)
    assert planner.stop() == 0
    await stack.bus.close()


async def test_nats_that_hangs_loses_no_turn(stack: Stack) -> None:
    await stack.lead()
    await record_turns(stack.bus, stack.namespace, [turn(n, turn=1) for n in range(40)])
    stack.nats.pause()
    await asyncio.sleep(12)  # longer than the clients take a silent server for alive
    stack.nats.resume()
    await eventually("NATS is back for the test", stack.status)
    await record_turns(stack.bus, stack.namespace, [turn(n, turn=1) for n in range(40, 70)])
    status = await stack.until("70 counted", lambda status: status["turns"] >= 70)
    assert status["turns"] == 70


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_random_kills_under_load_lose_and_double_nothing(stack: Stack, seed: int) -> None:
    """Two planners, NATS and etcd, killed at random while turns are recorded."""
    draw = random.Random(seed)
    planners = [await stack.lead(), stack.start_planner()]
    sent = 0
    for _ in range(8):
        for _ in range(draw.randrange(1, 12)):
            await eventually("a turn is stored", functools.partial(store_once, stack, sent))
            sent += 1
        match draw.choice(("planner", "planner", "nats", "etcd")):
            case "planner":
                planners.pop(draw.randrange(len(planners))).kill()
                planners.append(stack.start_planner())
            case "nats":
                stack.nats.restart()
            case "etcd":
                stack.etcd.restart()
    status = await stack.until(
        f"{sent} counted", lambda status: status["turns"] >= sent and not status["lag"]
    )
    assert status["turns"] == sent
    assert status["tables"][0]["version"] == 1


async def store_once(stack: Stack, number: int) -> bool:
    """One turn, known to the stream by its number, so that a repeated try stores it once."""
    record = turn(number, turn=1)
    await stack.bus.js.publish(
        turns_subject(stack.namespace, record.model),
        encode(record),
        headers={"Nats-Msg-Id": record.request_id},
    )
    return True
