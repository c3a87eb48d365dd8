"""The test servers themselves: they can be killed, restarted with their data, paused and wiped."""

from collections.abc import Callable

import pytest
from nats.js.errors import NotFoundError

from ppd.core.streams import Stream
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd, EtcdError
from ppd.runtime.streams import ensure
from tests.support.servers import EtcdServer, NatsServer

pytestmark = pytest.mark.contract


async def test_etcd_keeps_its_data_over_a_kill_and_answers_again_after_a_pause(
    fresh_etcd: EtcdServer,
) -> None:
    fresh_etcd.start()
    client = Etcd([fresh_etcd.address])
    await client.put("/k", b"v")
    fresh_etcd.restart()
    found = await client.get("/k")
    assert found is not None
    assert found[0] == b"v"
    fresh_etcd.pause()
    with pytest.raises(EtcdError):
        await client.get("/k")
    fresh_etcd.resume()
    assert await client.get("/k") == found
    await client.close()


async def test_nats_keeps_its_streams_over_a_kill_and_loses_them_when_wiped(
    fresh_nats: Callable[..., NatsServer],
) -> None:
    server = fresh_nats()
    server.start()

    async def found() -> str:
        bus = Bus([server.url], "test")
        await bus.connect()
        try:
            return (await bus.js.stream_info("S")).config.name or ""
        finally:
            await bus.close()

    bus = Bus([server.url], "test")
    await bus.connect()
    await ensure(bus, Stream("S", ("s.>",), 600, 1 << 20))
    await bus.close()
    server.restart()
    assert await found() == "S"
    server.kill()
    server.wipe()
    server.start()
    with pytest.raises(NotFoundError):
        await found()
