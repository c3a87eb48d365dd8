"""SIGTERM drains: no new turns, what runs finishes, then all is gone. A second SIGTERM ends at once."""

import asyncio
import signal

import aiohttp
import pytest

from ppd.core.names import WorkerStatus
from tests.contract.workers.conftest import until

pytestmark = [pytest.mark.contract, pytest.mark.timeout(180)]

LONG = {"model": "small", "prompt": "Tell me all.", "stream": True, "ignore_eos": True}


async def _stream(session: aiohttp.ClientSession, url: str, tokens: int, started: asyncio.Event) -> bool:
    """Whether the stream came to its proper end."""
    last = b""
    async with session.post(f"{url}/v1/completions", json={**LONG, "max_tokens": tokens}) as reply:
        assert reply.status == 200, await reply.text()
        async for line in reply.content:
            last = line.strip() or last
            started.set()
    return last == b"data: [DONE]"


async def test_a_running_stream_finishes(worker) -> None:
    agent = worker("d0", "--role", "decode")
    record = await agent.record()
    engine, started = agent.engine(), asyncio.Event()
    async with aiohttp.ClientSession() as session:
        stream = asyncio.create_task(_stream(session, record.url, 300, started))
        await asyncio.wait_for(started.wait(), 30)
        agent.process.send_signal(signal.SIGTERM)
        await until(
            agent.record, lambda r: r.status is WorkerStatus.DRAINING, lambda: f"not draining: {agent.log}"
        )
        assert not stream.done()
        assert await asyncio.wait_for(stream, 60)
    assert await agent.exit_code() == 0
    assert not engine.is_running()
    await agent.gone()


async def test_blocks_that_wait_to_be_read_are_waited_for(worker) -> None:
    agent = worker("p0", "--role", "prefill")
    record = await agent.record()
    params = {"do_remote_decode": True, "do_remote_prefill": False}
    body = {"model": "small", "prompt": "word " * 200, "max_tokens": 1, "kv_transfer_params": params}
    async with (
        aiohttp.ClientSession() as session,
        session.post(record.url + "/v1/completions", json=body) as r,
    ):
        assert (await r.json())["kv_transfer_params"]["remote_block_ids"]
    agent.process.send_signal(signal.SIGTERM)
    await agent.says("draining")
    await asyncio.sleep(3)
    assert agent.process.poll() is None, "it left before the decode engine could read"
    assert await agent.exit_code() == 0  # once the blocks' lease is over


async def test_a_drain_is_bounded(worker) -> None:
    agent = worker("d0", "--role", "decode", "--drain-s", "2")
    record = await agent.record()
    started = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        stream = asyncio.create_task(_stream(session, record.url, 100_000, started))
        await asyncio.wait_for(started.wait(), 30)
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exit_code() == 0
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(stream, 30)


async def test_a_second_sigterm_ends_at_once(worker) -> None:
    agent = worker("d0", "--role", "decode", "--drain-s", "3600")
    record = await agent.record()
    engine, started = agent.engine(), asyncio.Event()
    async with aiohttp.ClientSession() as session:
        stream = asyncio.create_task(_stream(session, record.url, 100_000, started))
        await asyncio.wait_for(started.wait(), 30)
        agent.process.send_signal(signal.SIGTERM)
        await agent.says("draining")
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exit_code() == 0
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(stream, 30)
    assert not engine.is_running()
    await agent.gone()
