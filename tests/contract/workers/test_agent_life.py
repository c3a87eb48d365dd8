"""An agent and its engine as processes: registration, crash, hang, kill, outages of etcd and NATS."""

import asyncio
import signal

import nats
import psutil
import pytest

from ppd.core.names import WorkerStatus, load_subject
from ppd.core.records import WorkerLoad, decode
from tests.contract.workers.conftest import until

pytestmark = [pytest.mark.contract, pytest.mark.timeout(180)]


async def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_registers_what_the_engine_says(worker, namespace) -> None:
    agent = worker("d0", "--role", "decode", "--block-size", "32")
    record = await agent.record()
    assert record.status is WorkerStatus.READY
    assert (record.model, record.role, record.backend) == ("small", "decode", "sim")
    assert record.block_size_tokens == 32
    assert record.engine_id
    assert record.kv_bytes_per_token > 0
    assert record.kv_capacity_tokens > 0
    assert record.max_model_len_tokens > 0


async def test_reports_load_on_nats(worker, namespace, nats_server) -> None:
    record = await worker("r0", "--role", "replica").record()
    connection = await nats.connect(nats_server.url)
    try:
        reports = await connection.subscribe(load_subject(namespace, record.worker_id))
        first = decode((await reports.next_msg(timeout=20)).data, WorkerLoad)
        second = decode((await reports.next_msg(timeout=20)).data, WorkerLoad)
    finally:
        await connection.close()
    assert (first.worker_id, second.seq) == (record.worker_id, first.seq + 1)


async def test_a_killed_agent_takes_its_engine_along(worker) -> None:
    agent = worker("d0", "--role", "decode")
    await agent.record()
    engine = agent.engine()
    agent.process.kill()
    await until(lambda: _alive(engine), lambda alive: not alive, lambda: "the engine outlived its agent")
    await agent.gone()


async def test_a_crashed_engine_comes_back_as_another_worker(worker) -> None:
    agent = worker("d0", "--role", "decode")
    old = await agent.record()
    agent.engine().kill()
    new = await agent.record(other_than=old.worker_id)
    assert new.engine_id != old.engine_id
    await agent.says(rf"the engine of {old.worker_id} failed: its process ended with -9; its last lines:\n")


async def test_a_hung_engine_is_replaced(worker) -> None:
    agent = worker("d0", "--role", "decode")
    old = await agent.record()
    hung = agent.engine()
    hung.send_signal(signal.SIGSTOP)
    await agent.record(other_than=old.worker_id)
    await agent.says(rf"the engine of {old.worker_id} failed: it generated no token within 2 s")
    assert not await _alive(hung)


async def test_an_engine_that_cannot_start_says_why(worker) -> None:
    agent = worker("d0", "--role", "decode", "--", "--no-such-flag")
    await agent.says(r"ended with 2 before it was ready:\n(.*\n)*.*--no-such-flag")
    assert await agent.exit_code() == 1
    await agent.gone()


async def test_etcd_outage_disturbs_nothing_and_heals(worker, etcd_server) -> None:
    agent = worker("d0", "--role", "decode")
    before = await agent.record()
    engine = agent.engine()
    etcd_server.kill()
    etcd_server.wipe()
    await agent.says("etcd .* cannot be reached")
    etcd_server.start()
    assert await agent.record() == before
    assert agent.engine() == engine


async def test_nats_outage_disturbs_nothing_and_heals(worker, namespace, nats_server) -> None:
    agent = worker("r0", "--role", "replica")
    record = await agent.record()
    engine = agent.engine()
    nats_server.kill()
    await agent.says("NATS is away")
    nats_server.start()
    connection = await nats.connect(nats_server.url)
    try:
        reports = await connection.subscribe(load_subject(namespace, record.worker_id))
        await reports.next_msg(timeout=30)
    finally:
        await connection.close()
    assert (await agent.record(), agent.engine()) == (record, engine)


async def test_waits_for_servers_that_start_later(worker, etcd_server, nats_server) -> None:
    etcd_server.kill()
    nats_server.kill()
    agent = worker("d0", "--role", "decode")
    await agent.says("NATS")
    nats_server.start()
    etcd_server.start()
    assert (await agent.record()).status is WorkerStatus.READY


async def test_unlike_engines_are_named(worker) -> None:
    prefill = worker("p0", "--role", "prefill", "--block-size", "16")
    decode_ = worker("d0", "--role", "decode", "--block-size", "32")
    p, d = await asyncio.gather(prefill.record(), decode_.record())
    await decode_.says(
        f"decode {d.worker_id} and prefill {p.worker_id} cannot exchange KV, they are unlike in "
        "block size tokens 32 and 16"
    )
