"""A watch of a bucket over restarts of NATS, deleted buckets and deleted consumers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from ppd.core import streams
from ppd.runtime import bucket_watch
from ppd.runtime.bucket_watch import watch_bucket
from ppd.runtime.bus import Bus
from ppd.runtime.streams import bucket
from tests.support.servers import NatsServer
from tests.support.waiting import until

pytestmark = pytest.mark.contract

STREAM = streams.tables("default")


class Scene:
    """A watcher and a writer, each with a connection of its own."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.seen: dict[str, bytes] = {}
        self.bus, self.writer = Bus([server.url], "watcher"), Bus([server.url], "writer")

    def take(self, key: str, data: bytes) -> None:
        self.seen[key] = data

    async def put(self, key: str, data: bytes) -> None:
        await self.writer.connect()
        for _ in range(100):
            try:
                await (await bucket(self.writer, STREAM)).put(key, data)
                return
            except Exception:  # JetStream recovers after its server answers
                await asyncio.sleep(0.05)
        raise AssertionError("JetStream does not come back")

    async def consumers(self) -> int:
        return (await self.writer.js.stream_info(STREAM.name)).state.consumer_count


@pytest.fixture
async def scene(fresh_nats: Callable[..., NatsServer]) -> AsyncIterator[Scene]:
    server = fresh_nats()
    await asyncio.to_thread(server.start)
    made = Scene(server)
    await made.writer.connect()
    task = asyncio.create_task(watch_bucket(made.bus, STREAM, made.take))
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if made.writer.connected:
        assert await made.consumers() == 0, "a watch that ends leaves no consumer behind"
    await made.bus.close()
    await made.writer.close()


async def test_a_value_written_after_a_restart_arrives_without_a_check_of_the_watch(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reconnect itself starts the watch again: nothing here waits for a period."""
    monkeypatch.setattr(bucket_watch, "_CHECK_S", 1e6)
    await scene.put("a", b"1")
    await until(lambda: scene.seen == {"a": b"1"})
    for round_number in range(3):
        await asyncio.to_thread(scene.server.restart)
        value = f"after {round_number}".encode()
        await scene.put("a", value)
        await until(lambda value=value: scene.seen["a"] == value)


async def test_consumers_do_not_pile_up_over_restarts(scene: Scene) -> None:
    await scene.put("a", b"0")
    for number in range(8):
        await asyncio.to_thread(scene.server.restart)
        value = b"%d" % number
        await scene.put("a", value)
        await until(lambda value=value: scene.seen.get("a") == value)
    assert await scene.consumers() <= 2  # the one in use, and one that its server has yet to miss


async def test_a_deleted_bucket_is_watched_again_once_it_is_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_watch, "_CHECK_S", 1e6)
    await scene.put("a", b"1")
    await until(lambda: scene.seen == {"a": b"1"})
    await scene.writer.js.delete_stream(STREAM.name)
    await scene.put("a", b"2")
    await until(lambda: scene.seen["a"] == b"2")


async def test_a_deleted_consumer_is_replaced(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_watch, "_CHECK_S", 0.05)
    await scene.put("a", b"1")
    await until(lambda: scene.seen == {"a": b"1"})
    (consumer,) = await scene.writer.js.consumers_info(STREAM.name)
    await scene.writer.js.delete_consumer(STREAM.name, consumer.name)
    await scene.put("a", b"2")
    await until(lambda: scene.seen["a"] == b"2")


async def test_deleted_keys_yield_nothing_and_others_go_on(scene: Scene) -> None:
    await scene.put("a", b"1")
    await until(lambda: "a" in scene.seen)
    await (await bucket(scene.writer, STREAM)).delete("a")
    await scene.put("b.c", b"2")
    await until(lambda: scene.seen.get("b.c") == b"2")
    assert scene.seen["a"] == b"1"
