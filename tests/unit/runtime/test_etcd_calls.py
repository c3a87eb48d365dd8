"""Calls that end because another call of the same process closed their connection."""

import asyncio

import pytest

from ppd.runtime.etcd import Etcd, EtcdError

pytestmark = pytest.mark.unit


class FakeClient:
    """In place of aetcd's: gRPC cancels what waits on a channel that is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def call(self) -> None:
        await self.closed.wait()
        raise asyncio.CancelledError

    async def close(self) -> None:
        self.closed.set()


async def test_a_call_whose_connection_another_call_closed_has_failed() -> None:
    etcd = Etcd(["127.0.0.1:1"])
    etcd._client = client = FakeClient()  # type: ignore[assignment]

    async def dead(_: object) -> None:
        raise OSError("the peer is gone")

    waiting = asyncio.create_task(etcd._call("lease grant", lambda c: c.call()))  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    with pytest.raises(EtcdError):
        await etcd._call("list", dead)
    assert client.closed.is_set()
    with pytest.raises(EtcdError, match="lease grant"):
        await waiting


async def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    etcd = Etcd(["127.0.0.1:1"])
    etcd._client = FakeClient()  # type: ignore[assignment]
    waiting = asyncio.create_task(etcd._call("get", lambda c: c.call()))  # type: ignore[attr-defined]
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
