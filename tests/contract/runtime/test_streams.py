"""Streams and buckets are as declared, whoever makes them first; values fit into what the server takes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest
from nats.js.api import StreamConfig

from ppd.core import streams
from ppd.core.records import CellRecord, TableSnapshot, decode
from ppd.core.streams import Stream
from ppd.runtime.bus import Bus
from ppd.runtime.streams import RECREATED, TooLargeError, bucket, ensure, value_of
from tests.support.nats_client import settled
from tests.support.servers import NatsServer

pytestmark = pytest.mark.contract


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    client = Bus([nats_server.url], "test")
    await client.connect()
    yield client
    await client.close()


@pytest.mark.parametrize(
    "declared",
    [
        streams.turns("NAMESPACE", 3600.0, 1 << 20),
        streams.tables("NAMESPACE"),
        streams.learners("NAMESPACE"),
        streams.sessions("NAMESPACE", 90.0),
    ],
    ids=lambda stream: stream.name,
)
async def test_a_stream_is_as_declared_and_the_owners_settings_reach_it(
    bus: Bus, namespace: str, declared: Stream
) -> None:
    name = f"{declared.name}_{namespace}".replace("-", "_")
    mine = declared._replace(name=name, subjects=(f"{name}.>",))
    other = mine._replace(
        max_age_s=60.0, max_bytes=1 << 16, max_per_subject=7, drop_oldest=not mine.drop_oldest
    )
    await ensure(bus, other)
    assert (await ensure(bus, mine)).config.max_age == 60.0, "who is not the owner changes nothing"
    for _ in range(2):
        config = (await ensure(bus, mine, owner=True)).config
        assert (config.max_age or 0, config.max_bytes, config.max_msgs_per_subject) == (
            *(mine.max_age_s, mine.max_bytes, mine.max_per_subject),
        )
        assert config.discard == ("old" if mine.drop_oldest else "new")
        assert config.duplicate_window == mine.duplicates_s


async def test_what_an_operator_added_stays(bus: Bus, namespace: str) -> None:
    stream = Stream(f"S{namespace}".replace("-", "_"), (f"{namespace}.>",), 600.0)
    await ensure(bus, stream)
    config: StreamConfig = (await bus.js.stream_info(stream.name)).config
    await bus.js.update_stream(config.evolve(description="the operator's", max_msgs=77))
    config = (await ensure(bus, stream._replace(max_age_s=700.0), owner=True)).config
    assert (config.description, config.max_msgs, config.max_age) == ("the operator's", 77, 700.0)


async def test_two_that_create_a_stream_at_once_both_have_it(bus: Bus, namespace: str) -> None:
    stream = Stream(f"S{namespace}".replace("-", "_"), (f"{namespace}.>",), 600.0)
    variants = [stream._replace(max_bytes=(1 + n) << 20) for n in range(8)]
    found = await asyncio.gather(*(ensure(bus, each) for each in variants))
    assert len({each.config.max_bytes for each in found}) == 1


async def test_a_change_that_nats_refuses_is_logged_and_the_stream_used(
    fresh_nats: Callable[..., NatsServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = fresh_nats()
    server.limit_storage("4MB")
    await asyncio.to_thread(server.start)
    bus = Bus([server.url], "test", logging.getLogger("test"))
    await bus.connect()
    stream = Stream("S", ("s.>",), 600.0, 1 << 20)
    await ensure(bus, stream)
    info = await ensure(bus, stream._replace(max_bytes=1 << 30), owner=True)
    assert info.config.max_bytes == 1 << 20
    assert "stream S stays as it is, NATS refuses max_bytes 1048576 -> 1073741824" in caplog.text
    await bus.close()


async def test_a_stream_that_was_deleted_is_made_again_logged_and_counted(
    bus: Bus, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(f"S{namespace}".replace("-", "_"), (f"{namespace}.>",), 600.0)
    async with bus.changes(stream.name) as changed:
        await ensure(bus, stream)
        assert not changed.is_set()
        await bus.js.delete_stream(stream.name)
        await asyncio.wait_for(changed.wait(), 30)
    assert RECREATED.labels(stream.name)._value.get() == 0
    await ensure(bus, stream)
    assert RECREATED.labels(stream.name)._value.get() == 1
    assert f"stream {stream.name} was deleted" in caplog.text


async def test_a_full_sessions_bucket_gives_up_its_oldest_records(bus: Bus, namespace: str) -> None:
    stream = streams.sessions(namespace, 600.0)._replace(max_bytes=20_000)
    kv = await bucket(bus, stream)
    for number in range(40):
        await kv.put(f"k{number}", b"x" * 1000)
    assert (await kv.get("k39")).value == b"x" * 1000
    assert (await bus.js.stream_info(stream.name)).state.bytes <= 20_000


def _table(cells: int) -> TableSnapshot:
    made = [CellRecord(context="small", ratio=f"ratio-{n}", qps=n / 7) for n in range(cells)]
    return TableSnapshot(model="m", placement="1P1D", version=1, cells=made)


async def test_values_near_the_limit_are_compressed_and_beyond_it_refused_with_reason(
    fresh_nats: Callable[..., NatsServer],
) -> None:
    server = fresh_nats("max_payload: 16384")
    await asyncio.to_thread(server.start)
    bus = Bus([server.url], "test")
    await bus.connect()
    kv = await bucket(bus, streams.tables("default"))
    for cells, compressed in ((10, False), (300, True)):
        data = value_of(bus, "the table", _table(cells))
        assert (data[:1] != b"{") is compressed
        await kv.put("k", data)
        assert decode((await kv.get("k")).value or b"", TableSnapshot) == _table(cells)
    with pytest.raises(TooLargeError) as refused:
        value_of(bus, "the table of m on 1P1D", _table(9000))
    text = str(refused.value)
    assert text.startswith("the table of m on 1P1D: ")
    assert "max_payload 16384" in text
    assert "raise max_payload" in text
    # A batch with a message beyond the limit loses that one and not the connection.
    got: list[bytes] = []

    async def on_message(message: object) -> None:
        got.append(message.data)  # type: ignore[attr-defined]

    await bus.nc.subscribe("x", cb=on_message)
    await settled(bus.nc)
    connections = bus.connections
    assert bus.publish_all([("x", b"1", None), ("x", b"y" * 20_000, None), ("x", b"2", None)])
    async with asyncio.timeout(30):
        while len(got) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert got == [b"1", b"2"]
    assert bus.connections == connections
    await bus.close()
