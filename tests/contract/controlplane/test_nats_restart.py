"""What a frontend does when NATS is back after kill -9: tables, sessions and records go on at once."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from ppd.core import streams
from ppd.core.names import Role, table_key
from ppd.core.records import encode
from ppd.runtime import bucket_watch
from ppd.runtime.bus import Bus
from ppd.runtime.streams import bucket
from tests.contract.controlplane.conftest import Cluster, until
from tests.contract.controlplane.published import table
from tests.support.answers import TEXT
from tests.support.planners import eventually
from tests.support.servers import EtcdServer, NatsServer

pytestmark = pytest.mark.contract

KEY = table_key("m", "1P1D")


async def test_a_table_published_after_a_restart_is_served_without_a_periodic_check(
    fresh_etcd: EtcdServer, fresh_nats: Callable[..., NatsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reconnect itself makes the frontend look again: with the check switched off it must, too."""
    monkeypatch.setattr(bucket_watch, "_CHECK_S", 1e6)
    nats = fresh_nats()
    await asyncio.to_thread(fresh_etcd.start)
    await asyncio.to_thread(nats.start)
    async with AsyncExitStack() as exits:
        cluster = Cluster(fresh_etcd, nats, "restart", exits)
        await cluster.register("p0", Role.PREFILL)
        await cluster.register("d0", Role.DECODE)
        stack = await cluster.frontend()
        writer = Bus([nats.url], "writer")
        await writer.connect()
        stream = streams.tables("restart")

        def version() -> int:
            known = stack.frontend.tables.table("m", "1P1D")
            return known.version if known else 0

        for number in range(1, 5):

            async def published(number: int = number) -> bool:
                await writer.connect()
                await (await bucket(writer, stream)).put(KEY, encode(table(number, 10.0)))
                return True

            await eventually("JetStream takes a table", published)
            await until(lambda number=number: version() == number)
            await stack.ask(f"question {number}")
            await until(lambda: not len(stack.frontend.recorder) and not stack.frontend.sharing.pending, 60)
            info = await writer.js.stream_info(stream.name)
            assert info.state.consumer_count <= 2  # the one in use, and one that its server has yet to miss
            await asyncio.to_thread(nats.restart)
        fresh = await cluster.frontend()
        await fresh.ask("question 1", TEXT, "more")
        assert fresh.frontend.ledger.recent[-1].turn == 2
        await writer.close()
        await exits.aclose()
        await cluster.etcd.close()
        for engine in cluster.engines.values():
            await engine.stop()
