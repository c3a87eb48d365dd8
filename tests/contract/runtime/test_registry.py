"""Registration and watch against a real etcd that is killed, paused, compacted and restarted."""

import asyncio
import logging

import pytest

from ppd.core.names import LEASE_TTL_S, Role, WorkerStatus, worker_key
from ppd.core.records import WorkerRecord, encode
from ppd.runtime.etcd import Compacted, Etcd, EtcdError
from ppd.runtime.registry import Registration, WorkerWatch
from ppd.runtime.tasks import Supervisor
from tests.support.waiting import until

pytestmark = pytest.mark.contract
LOG = logging.getLogger("test")


def worker(worker_id: str, **more) -> WorkerRecord:
    return WorkerRecord(
        worker_id=worker_id, name="d0", role=Role.DECODE, model="m", url="http://127.0.0.1:1", **more
    )


@pytest.fixture
async def pair(etcd_server, namespace):
    """A registration and a watch, each with a client of its own, as in two processes."""
    agent, viewer = Etcd([etcd_server.address]), Etcd([etcd_server.address])
    registration = Registration(agent, namespace, LOG)
    watch = WorkerWatch(viewer, namespace, lambda workers: None, LOG)
    agent_tasks, viewer_tasks = Supervisor(LOG), Supervisor(LOG)
    agent_tasks.start("registration", registration.run)
    viewer_tasks.start("watch", watch.run)
    yield registration, watch, agent_tasks
    await agent_tasks.close()
    await viewer_tasks.close()
    await agent.close()
    await viewer.close()


async def test_appears_changes_and_goes(pair):
    registration, watch, tasks = pair
    registration.set(worker("d0-1"))
    await until(lambda: "d0-1" in watch.workers)
    registration.set(worker("d0-1", status=WorkerStatus.DRAINING))
    await until(lambda: watch.workers["d0-1"].status == WorkerStatus.DRAINING)
    await tasks.close()
    await registration.close()
    await until(lambda: not watch.workers)


async def test_who_leaves_says_so_before_its_record_goes(pair, etcd_server, namespace):
    registration, _, _ = pair
    seen: list[list[str]] = []
    viewer, tasks = Etcd([etcd_server.address]), Supervisor(LOG)
    watch = WorkerWatch(viewer, namespace, lambda found: seen.append([w.status for w in found.values()]), LOG)
    tasks.start("watch", watch.run)
    try:
        registration.set(worker("d0-1", status=WorkerStatus.READY))
        await until(lambda: seen == [["ready"]])
        registration.set(None)
        await until(lambda: len(seen) == 3)
        assert seen[1:] == [["draining"], []]
    finally:
        await tasks.close()
        await viewer.close()


async def test_a_new_incarnation_replaces_the_old_one(pair):
    registration, watch, _ = pair
    registration.set(worker("d0-1"))
    await until(lambda: "d0-1" in watch.workers)
    registration.set(worker("d0-2"))
    await until(lambda: set(watch.workers) == {"d0-2"})


async def test_a_dead_agent_vanishes_with_its_lease(pair):
    registration, watch, tasks = pair
    registration.set(worker("d0-1"))
    await until(lambda: "d0-1" in watch.workers)
    await tasks.close()  # no farewell: as after kill -9
    assert await until(lambda: not watch.workers, 2 * LEASE_TTL_S) < LEASE_TTL_S + 5


async def test_etcd_killed_the_view_stays_and_all_recover(pair, etcd_server, namespace):
    registration, watch, _ = pair
    registration.set(worker("d0-1"))
    await until(lambda: "d0-1" in watch.workers)
    etcd_server.kill()
    await until(lambda: not watch.connected)
    assert "d0-1" in watch.workers
    await asyncio.sleep(1)
    etcd_server.start()
    await until(lambda: watch.connected and registration.registered)
    registration.set(worker("d0-2"))
    await until(lambda: set(watch.workers) == {"d0-2"})


async def test_etcd_paused_past_the_lease_is_followed_by_a_new_registration(pair, etcd_server, namespace):
    registration, watch, _ = pair
    registration.set(worker("d0-1"))
    await until(lambda: "d0-1" in watch.workers)
    etcd_server.pause()
    try:
        await until(lambda: not registration.registered)
        assert "d0-1" in watch.workers
    finally:
        etcd_server.resume()
    await until(lambda: registration.registered and watch.connected and "d0-1" in watch.workers)


async def test_etcd_comes_back_empty(pair, etcd_server):
    registration, watch, _ = pair
    registration.set(worker("d0-1"))
    await until(lambda: "d0-1" in watch.workers)
    etcd_server.kill()
    etcd_server.wipe()
    etcd_server.start()
    await until(lambda: registration.registered and watch.connected and "d0-1" in watch.workers)


async def test_bad_records_are_left_out(etcd_server, namespace, pair, caplog):
    _, watch, _ = pair
    etcd = Etcd([etcd_server.address])
    await etcd.put(worker_key(namespace, "bad"), b"\xff not json")
    await etcd.put(worker_key(namespace, "liar"), encode(worker("someone-else")))
    await etcd.put(worker_key(namespace, "good"), encode(worker("good")))
    await until(lambda: set(watch.workers) == {"good"})
    assert "liar" in caplog.text
    await etcd.close()


async def test_fails_over_between_endpoints(etcd_server, namespace):
    etcd = Etcd(["127.0.0.1:1", etcd_server.address])
    key = worker_key(namespace, "x")
    await etcd.put(key, b"1")
    found = await etcd.get(key)
    assert found is not None
    assert found[0] == b"1"
    await etcd.close()


async def test_unreachable_is_an_error_within_the_deadline():
    etcd = Etcd(["127.0.0.1:1"])
    with pytest.raises(EtcdError, match=r"127\.0\.0\.1:1"):
        await asyncio.wait_for(etcd.get("x"), 10)
    await etcd.close()


async def test_compare_and_set(etcd_server, namespace):
    etcd = Etcd([etcd_server.address])
    key = worker_key(namespace, "cas")
    assert await etcd.create(key, b"1")
    assert not await etcd.create(key, b"2")
    _, revision = await etcd.get(key)
    assert await etcd.replace(key, b"2", revision)
    assert not await etcd.replace(key, b"3", revision)
    assert (await etcd.get(key))[0] == b"2"
    await etcd.close()


async def test_a_compacted_revision_is_told_apart(etcd_server, namespace):
    import subprocess

    from tests.support.servers import binary

    etcd = Etcd([etcd_server.address])
    key = worker_key(namespace, "k")
    for number in range(3):
        await etcd.put(key, b"%d" % number)
    _, revision = await etcd.get(key)
    command = [binary("etcdctl"), "--endpoints", etcd_server.address, "compaction", str(revision)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=10)
    with pytest.raises(Compacted):
        await asyncio.wait_for(anext(etcd.watch(key, revision - 2)), 10)
    await etcd.close()
