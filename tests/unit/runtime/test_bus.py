"""Batches on their way to NATS, by the client's own writer and by its public API."""

import asyncio
import logging
import tomllib
from importlib.metadata import version
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from ppd.runtime.bus import DROPPED, Bus, Message

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
BATCH: list[Message] = [("a", b"1", None), ("a", b"2" * 200, None), ("a", b"3", {"Nats-Msg-Id": "x"})]


class FakeClient:
    """A connected client without a writer of its own; `away_after` messages it fails."""

    is_connected = True
    max_payload = 100

    def __init__(self, away_after: int = 99) -> None:
        self.got: list[tuple[str, bytes, dict[str, str] | None]] = []
        self.away_after = away_after

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        await asyncio.sleep(0)
        if len(self.got) >= self.away_after:
            raise nats.errors.ConnectionClosedError
        if len(data) > self.max_payload:
            raise nats.errors.MaxPayloadError
        self.got.append((subject, data, headers))


def bus_of(client: FakeClient) -> Bus:
    bus = Bus(["nats://127.0.0.1:1"], "test", logging.getLogger("test"))
    bus._nc = client  # type: ignore[assignment]
    return bus


def dropped(kind: str) -> float:
    return float(DROPPED.labels(kind)._value.get())


def test_the_pinned_client_has_the_writer_that_batches_use() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"nats-py=={version('nats-py')}" in dependencies
    assert hasattr(Client(), "_transport")
    assert callable(TcpTransport.write)


async def test_without_that_writer_batches_go_by_the_public_api_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeClient()
    bus, before = bus_of(client), dropped("too-large")
    assert bus.publish_all(iter(BATCH))
    assert not bus.publish_all(BATCH), "one batch at a time"
    await bus.sent()
    assert client.got == [("a", b"1", None), ("a", b"3", {"Nats-Msg-Id": "x"})]
    assert dropped("too-large") == before + 1
    assert "a message on a is dropped" in caplog.text
    assert bus.publish_all([("b", b"", None)])
    await bus.sent()
    assert client.got[-1] == ("b", b"", None)


async def test_what_cannot_be_sent_is_counted() -> None:
    bus, before = bus_of(FakeClient(away_after=1)), dropped("batch")
    assert bus.publish_all(BATCH)
    await bus.sent()
    assert dropped("batch") == before + 2
