"""The bucket of shared sessions: its bounds, one record per conversation, and its loss while all runs."""

import asyncio
from typing import Any

import pytest

from ppd.cli.status import collect
from ppd.core import streams
from ppd.core.names import Role
from ppd.runtime.streams import RECREATED, bucket
from tests.contract.controlplane.conftest import Cluster, Stack, until, written
from tests.support.answers import TEXT

pytestmark = pytest.mark.contract


async def _info(cluster: Cluster, stack: Stack) -> Any:
    return await stack.frontend.bus.js.stream_info(streams.sessions(cluster.namespace, 1).name)


async def _eventually(cluster: Cluster, stack: Stack, records: int) -> None:
    """Marks of deleted records go by themselves within seconds."""
    async with asyncio.timeout(60):
        while (await _info(cluster, stack)).state.messages != records:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _chat(stack: Stack, question: str, turns: int, **headers: str) -> None:
    history = [question]
    for _ in range(turns):
        await stack.ask(*history, headers=headers)
        history += [TEXT, "more"]


async def test_the_frontends_settings_reach_a_bucket_that_somebody_made_before(cluster: Cluster) -> None:
    other = streams.sessions(cluster.namespace, 3600.0)._replace(max_bytes=-1, drop_oldest=False)
    first = await cluster.frontend()
    await first.frontend.bus.js.delete_stream(other.name)
    await bucket(first.frontend.bus, other)
    stack = await cluster.frontend(session_ttl_s=77.0)
    config = (await _info(cluster, stack)).config
    assert (config.max_age, config.max_bytes, config.discard) == (77.0, streams.SESSIONS_BYTES, "old")


async def test_a_conversation_is_one_record_however_long_it_gets(cluster: Cluster) -> None:
    stack = await cluster.frontend()
    for number in range(5):
        await _chat(stack, f"question {number}", 6)
    await written(stack)
    await _eventually(cluster, stack, 5)
    bus, namespace = stack.frontend.bus, cluster.namespace
    assert await collect._sessions(bus, namespace) == 5
    # Under a client's own id there is the id's record too, which is no further conversation.
    for number in range(3):
        await _chat(stack, f"named {number}", 4, **{"x-session-id": f"s{number}"})
    await written(stack)
    await _eventually(cluster, stack, 5 + 2 * 3)
    assert await collect._sessions(bus, namespace) == 8
    assert (await _info(cluster, stack)).state.consumer_count == 0


async def test_frontends_in_turn_leave_one_record_and_a_fresh_one_finds_it(cluster: Cluster) -> None:
    await cluster.register("d1", Role.DECODE)
    await cluster.register("d2", Role.DECODE)
    one, other = await cluster.frontend(), await cluster.frontend()
    history = ["hi"]
    for turn in range(7):
        stack = (one, other)[turn % 2]
        await stack.ask(*history)
        await written(stack)
        history += [TEXT, "more"]
    await _eventually(cluster, one, 1)
    fresh = await cluster.frontend()
    await fresh.ask(*history)
    record = fresh.frontend.ledger.recent[-1]
    assert (record.turn, record.session_id) == (8, one.frontend.ledger.recent[-1].session_id)


async def test_a_branch_is_a_conversation_of_its_own(cluster: Cluster) -> None:
    stack = await cluster.frontend()
    await _chat(stack, "hi", 2)
    await stack.ask("hi", TEXT, "another way")
    await written(stack)
    await _eventually(cluster, stack, 2)
    fresh = await cluster.frontend()
    for question in ("more", "another way"):
        await fresh.ask("hi", TEXT, question, TEXT, "and now")
        assert fresh.frontend.ledger.recent[-1].turn == 3


async def test_a_bucket_that_is_deleted_comes_back_logged_and_counted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    stack = await cluster.frontend(session_ttl_s=77.0)
    name = streams.sessions(cluster.namespace, 1).name
    await stack.frontend.bus.js.delete_stream(name)
    counted = RECREATED.labels(name)._value
    await until(lambda: counted.get() == 1)
    assert f"stream {name} was deleted: it is created again, empty" in caplog.text
    assert (await _info(cluster, stack)).config.max_age == 77.0
    await _chat(stack, "hi", 2)
    await written(stack)
    await _eventually(cluster, stack, 1)
    fresh = await cluster.frontend()
    assert (await fresh.ask("hi", TEXT, "more", TEXT, "x"))[0] == "d-local"
