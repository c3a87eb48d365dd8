"""The frontend on real etcd and NATS: registry, tables, records, sessions that are shared, outages."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from nats.js.errors import BucketNotFoundError

from ppd.core import names, streams
from ppd.core.names import Role, worker_key
from ppd.core.records import (
    KvHeld,
    KvMoved,
    TableSnapshot,
    TurnRecord,
    WorkerLoad,
    decode,
    encode,
)
from ppd.runtime.streams import bucket as open_bucket
from tests.contract.controlplane.conftest import Cluster, until, written
from tests.contract.controlplane.published import table
from tests.support.answers import TEXT
from tests.support.servers import EtcdServer, NatsServer

pytestmark = pytest.mark.contract


async def test_workers_come_and_go_with_the_registry(cluster: Cluster) -> None:
    stack = await cluster.frontend()
    assert (await stack.ask("hi"))[:2] == ("p-d", "first-turn")
    await cluster.etcd.delete(worker_key(cluster.namespace, "p0-1"))
    await until(lambda: "p0-1" not in stack.frontend.cluster.workers)
    assert (await stack.ask("hi"))[:2] == ("d-local", "no-prefill")
    await cluster.register("p0", Role.PREFILL, incarnation=2)
    await until(lambda: "p0-2" in stack.frontend.cluster.workers)
    assert (await stack.ask("hi"))[:2] == ("p-d", "first-turn")


async def test_each_turn_is_one_record_of_the_stream(cluster: Cluster) -> None:
    stack = await cluster.frontend()
    for i in range(20):
        await stack.ask(f"hi {i}")
    await until(lambda: len(stack.frontend.recorder) == 0)
    js = stack.frontend.bus.js
    consumer = await js.pull_subscribe(
        names.turns_subject(cluster.namespace, "") + ">",
        durable="test",
        stream=names.stream_name(names.TURNS_STREAM, cluster.namespace),
    )
    messages = await consumer.fetch(100, timeout=2)
    records = [decode(message.data, TurnRecord) for message in messages]
    assert len(records) == 20
    assert len({record.request_id for record in records}) == 20
    assert all(record.n_out_tokens == 5 and record.path == "p-d" for record in records)


async def test_a_bucket_that_the_frontend_made_keeps_as_many_versions_as_the_planner_wants(
    cluster: Cluster,
) -> None:
    stack = await cluster.frontend()
    name = names.stream_name(names.TABLE_BUCKET, cluster.namespace)
    found: list[int] = []
    for _ in range(100):
        with contextlib.suppress(BucketNotFoundError):
            bucket = await stack.frontend.bus.js.key_value(name)
            found.append((await bucket.status()).history)
            break
        await asyncio.sleep(0.1)
    assert found == [streams.TABLE_HISTORY]


async def test_a_published_table_takes_effect_and_a_bad_one_does_not(cluster: Cluster) -> None:
    stack = await cluster.frontend(policy="ppd")
    bucket = await open_bucket(stack.frontend.bus, streams.tables(cluster.namespace))
    key = names.table_key("m", "1P1D")

    def version() -> int:
        known = stack.frontend.tables.table("m", "1P1D")
        return known.version if known else 0

    await bucket.put(key, encode(table(3, 10.0)))
    await until(lambda: version() == 3)
    await stack.ask("hi")
    assert (await stack.ask("hi", TEXT, "more"))[0] == "d-local"
    await bucket.put(key, encode(table(4, 900.0)))
    await until(lambda: version() == 4)
    route, reason, _ = await stack.ask("hi", TEXT, "more", TEXT, "x")
    assert route == "p-d"
    assert reason.startswith("table")
    for bad in (b"{", encode(table(2, 10.0)), encode(TableSnapshot(model="m", placement="1P1D", version=9))):
        await bucket.put(key, bad)
    await bucket.put(key, encode(table(5, 900.0)))
    await until(lambda: version() == 5)


async def test_load_reports_reach_the_view(cluster: Cluster) -> None:
    stack = await cluster.frontend()
    load = WorkerLoad(worker_id="d0-1", running=7, kv_use=0.5, waiting=1)
    worker = stack.frontend.cluster.workers["d0-1"]

    async def publish_until_seen() -> None:
        while worker.report_age_s(asyncio.get_running_loop().time()) > 60:
            await stack.frontend.bus.publish(
                names.load_subject(cluster.namespace, "d0-1"), encode(load), "load"
            )
            await asyncio.sleep(0.05)

    await asyncio.wait_for(publish_until_seen(), 20)
    view = worker.view(asyncio.get_running_loop().time(), stale_s=60)
    assert (view.running, view.waiting, view.kv_use) == (7, 1, 0.5)


async def test_another_frontend_takes_the_next_turn(cluster: Cluster) -> None:
    one, other = await cluster.frontend(), await cluster.frontend()
    await one.ask("hi")
    await written(one)
    assert (await other.ask("hi", TEXT, "more"))[0] == "d-local"
    await written(other)
    assert (await one.ask("hi", TEXT, "more", TEXT, "x"))[0] == "d-local"
    ids = {each.frontend.ledger.recent[-1].session_id for each in (one, other)}
    assert len(ids) == 1


async def test_another_frontend_knows_who_keeps_a_response(cluster: Cluster) -> None:
    """One that runs beside it, and one that starts later; but a made-up id leads nowhere."""
    one, other = await cluster.frontend(), await cluster.frontend()
    cluster.engines["d0"].answer_id = "resp_1"
    async with one.http.post(f"{one.url}/v1/responses", json={"model": "m", "input": "hi"}) as response:
        assert response.status == 200
    await written(one)
    for stack in (other, await cluster.frontend()):
        for response_id, status in (("resp_1", 200), ("resp_2", 404)):
            async with stack.http.get(f"{stack.url}/v1/responses/{response_id}") as response:
                assert response.status == status
            more = {"model": "m", "input": "more", "previous_response_id": response_id}
            async with stack.http.post(f"{stack.url}/v1/responses", json=more) as response:
                assert response.status == status


async def test_a_restarted_frontend_remembers(cluster: Cluster) -> None:
    one = await cluster.frontend()
    async with await one.chat("hi", stream=True) as response:
        await response.read()
    await written(one)
    fresh = await cluster.frontend()
    assert len(fresh.frontend.sessions) == 0
    assert (await fresh.ask("hi", TEXT, "more"))[0] == "d-local"
    assert fresh.frontend.ledger.recent[-1].turn == 2


async def test_first_turns_never_read_from_nats(cluster: Cluster) -> None:
    stack = await cluster.frontend()

    async def no_read(*_: object) -> None:
        raise AssertionError("a first turn asked NATS")

    stack.frontend.history.fetch = no_read  # type: ignore[method-assign,assignment]
    assert (await stack.ask("hi"))[0] == "p-d"
    assert (await stack.ask("hi", TEXT, "more"))[0] == "d-local"


async def test_moved_kv_lands_in_the_turns_record(cluster: Cluster) -> None:
    stack = await cluster.frontend()
    d0 = cluster.engines["d0"]

    def report() -> None:
        params = d0.requests[-1].body.get("kv_transfer_params") or {}
        moved = KvMoved(
            request_id=params.get("ppd_request_id", ""), worker_id="d0-1", bytes=4096, transfer_s=0.02
        )
        subject = names.kv_moved_subject(cluster.namespace, "d0-1")
        asyncio.get_running_loop().create_task(stack.frontend.bus.publish(subject, encode(moved), "kv"))

    d0.on_request = report
    await stack.ask("hi")
    record = stack.frontend.ledger.recent[-1]
    await until(lambda: record.kv_bytes == 4096)
    assert record.kv_transfer_ms == pytest.approx(20)


async def test_pull_back_is_asked_for_used_once_and_only_for_its_history(cluster: Cluster) -> None:
    for name, role in (("p0", Role.PREFILL), ("d0", Role.DECODE)):
        await cluster.register(name, role, bidirectional=True)
    stack = await cluster.frontend(pullback=True, admin_key="k")
    await until(lambda: all(w.record.bidirectional for w in stack.frontend.cluster.workers.values()))
    d0, p0 = cluster.engines["d0"], cluster.engines["p0"]

    def report() -> None:
        params = d0.requests[-1].body.get("kv_transfer_params") or {}
        assert params["ppd_hold"] is True
        held = KvHeld(
            request_id=params["ppd_request_id"],
            worker_id="d0-1",
            hold_s=60,
            params={"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": [9]},
        )
        subject = names.kv_held_subject(cluster.namespace, "d0-1")
        asyncio.get_running_loop().create_task(stack.frontend.bus.publish(subject, encode(held), "kv"))

    d0.on_request = report
    force = {"x-ppd-force-route": "p-d-pullback", "x-ppd-admin-key": "k"}
    assert (await stack.ask("hi"))[0] == "p-d"
    await until(lambda: any(s.pullback for s in stack.frontend.sessions.newest(9)))
    d0.on_request = lambda: None
    assert (await stack.ask("other", TEXT, "more", headers=force))[0] == "p-d"
    assert (await stack.ask("hi", "edited", "more", headers=force))[0] == "p-d"
    assert (await stack.ask("hi", TEXT, "more", headers=force))[0] == "p-d-pullback"
    assert p0.requests[-1].body["kv_transfer_params"]["remote_block_ids"] == [9]
    assert (await stack.ask("hi", TEXT, "more", headers=force))[0] == "p-d"
    assert "remote_block_ids" not in p0.requests[-1].body["kv_transfer_params"]


async def test_etcd_and_nats_outages_stop_no_turn(
    tmp_path: Path, fresh_etcd: EtcdServer, fresh_nats: Callable[..., NatsServer]
) -> None:
    nats = fresh_nats()
    fresh_etcd.start()
    nats.start()
    async with AsyncExitStack() as exits:
        cluster = Cluster(fresh_etcd, nats, "outage", exits)
        await cluster.register("p0", Role.PREFILL)
        await cluster.register("d0", Role.DECODE)
        stack = await cluster.frontend(max_records=50)
        assert (await stack.ask("hi"))[0] == "p-d"
        nats.kill()
        fresh_etcd.kill()
        await until(lambda: not stack.frontend.bus.connected)
        for i in range(80):
            assert (await stack.ask(f"away {i}"))[0] == "p-d"
        assert (await stack.ask("away 0", TEXT, "more"))[0] == "d-local"
        assert (await stack.ask("unknown", TEXT, "more"))[0] == "p-d"
        assert len(stack.frontend.recorder) == 50
        await until(lambda: not stack.frontend.fleet.watch.connected)
        async with stack.http.get(stack.url + "/health") as response:
            health = await response.json()
            assert response.status == 200
        assert (health["etcd"], health["nats"], health["status"]) == ("away", "away", "degraded")
        fresh_etcd.start()
        nats.start()
        await until(lambda: len(stack.frontend.recorder) == 0, 60)
        await until(lambda: stack.frontend.fleet.watch.connected, 60)
        async with stack.http.get(stack.url + "/health") as response:
            health = await response.json()
        assert (health["etcd"], health["nats"]) == ("connected", "connected")
        info = await stack.frontend.bus.js.stream_info(names.stream_name(names.TURNS_STREAM, "outage"))
        assert info.state.messages >= 50
        await exits.aclose()
        await cluster.etcd.close()
        for engine in cluster.engines.values():
            await engine.stop()


async def test_a_frontend_that_starts_before_its_servers_serves_once_they_are_there(
    fresh_etcd: EtcdServer, fresh_nats: Callable[..., NatsServer]
) -> None:
    from tests.contract.controlplane.conftest import frontend

    nats = fresh_nats()
    async with frontend(fresh_etcd, nats, "early") as stack:
        async with await stack.chat("hi") as response:
            assert response.status == 503
            assert json.loads(await response.text())["error"]["type"] == "service_unavailable_error"
        fresh_etcd.start()
        nats.start()
        async with AsyncExitStack() as exits:
            cluster = Cluster(fresh_etcd, nats, "early", exits)
            await cluster.register("r0", Role.REPLICA)
            await until(lambda: "r0-1" in stack.frontend.cluster.workers, 60)
            assert (await stack.ask("hi"))[0] == "replica"
            await until(lambda: stack.frontend.bus.connected, 60)
            await cluster.etcd.close()
            await cluster.engines["r0"].stop()
