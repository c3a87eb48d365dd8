"""NATS: late start, restart, outage, and what is dropped meanwhile."""

import asyncio

import pytest

from ppd.core.streams import Stream
from ppd.runtime.bus import DROPPED, Bus, BusError
from ppd.runtime.streams import ensure
from tests.support.nats_client import settled
from tests.support.waiting import until

pytestmark = pytest.mark.contract


async def test_waits_for_a_server_that_comes_late(fresh_nats):
    server = fresh_nats()
    bus = Bus([server.url], "test")
    with pytest.raises(BusError):
        bus.nc  # noqa: B018
    connecting = asyncio.create_task(bus.connect())
    await asyncio.sleep(0.5)
    assert not connecting.done()
    await asyncio.to_thread(server.start)
    await asyncio.wait_for(connecting, 15)
    assert bus.connected
    await bus.close()


async def test_outage_drops_and_counts_then_heals(fresh_nats):
    server = fresh_nats()
    await asyncio.to_thread(server.start)
    bus = Bus([server.url], "test")
    await bus.connect()
    got: list[bytes] = []

    async def on_message(message):
        got.append(message.data)

    await bus.nc.subscribe("x", cb=on_message)
    assert await bus.publish("x", b"1", "test")
    await until(lambda: got == [b"1"])
    await asyncio.to_thread(server.kill)
    await until(lambda: not bus.connected)
    before = DROPPED.labels("test")._value.get()
    assert not await bus.publish("x", b"2", "test")
    assert DROPPED.labels("test")._value.get() == before + 1
    await asyncio.to_thread(server.start)
    await until(lambda: bus.connected)
    await bus.publish("x", b"3", "test")
    await until(lambda: got == [b"1", b"3"])
    await bus.close()


async def test_many_at_once_arrive_in_order_and_jetstream_drops_what_it_has(nats_server, namespace):
    bus = Bus([nats_server.url], "test")
    assert not bus.publish_all([("x", b"", None)])
    await bus.connect()
    name = f"S{namespace}".replace("-", "_")
    await ensure(bus, Stream(name, (f"{name}.>",), 3600, 1 << 20))
    got: list[bytes] = []

    async def on_message(message):
        got.append(message.data)

    await bus.nc.subscribe(f"{name}.a", cb=on_message)
    await settled(bus.nc)
    payloads = [b"", b"\r\nPUB x 1\r\n", *(b"%d" % i * i for i in range(300))]
    assert bus.publish_all((f"{name}.a", data, {"Nats-Msg-Id": f"id-{i}"}) for i, data in enumerate(payloads))
    assert bus.publish_all([(f"{name}.a", b"again", {"Nats-Msg-Id": "id-7"}), (f"{name}.a", b"plain", None)])
    await until(lambda: len(got) == len(payloads) + 2)
    assert got[: len(payloads)] == payloads

    async def stored() -> int:
        return (await bus.js.stream_info(name)).state.messages

    async with asyncio.timeout(20):
        while await stored() < len(payloads) + 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert await stored() == len(payloads) + 1
    await bus.close()
