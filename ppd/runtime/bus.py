"""NATS as the services use it: connects when the server comes, reconnects for ever, never blocks a caller."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

import nats
import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import BucketNotFoundError, NotFoundError
from nats.js.kv import KeyValue
from prometheus_client import Counter

from ppd.runtime.endpoints import EndpointError, check_nats, redacted
from ppd.runtime.tasks import OutageError, backoff_s

DROPPED = Counter("ppd_nats_dropped_messages", "Messages not sent because NATS was away", ["kind"])

CALL_DEADLINE_S = 3.0
_CONNECT_DEADLINE_S = 2.0


class BusError(OutageError):
    """NATS is not connected; the message says to what."""


class Bus:
    """One connection to NATS, with JetStream."""

    def __init__(
        self, servers: list[str], name: str, logger: logging.Logger | None = None, echo: bool = True
    ) -> None:
        """`echo`: whether its subscriptions get what it publishes itself."""
        if not servers:
            raise BusError("no NATS server is configured")
        try:
            for server in servers:
                check_nats(server)
        except EndpointError as error:
            raise BusError(str(error)) from None
        self._servers = servers
        self.where = ", ".join(map(redacted, servers))
        self._name = name
        self._echo = echo
        self._log = logger or logging.getLogger(__name__)
        self._nc: Client | None = None
        self._js: JetStreamContext | None = None
        self._connections = 0
        self._closing = False
        self._said_s = 0.0
        self._connecting = asyncio.Lock()  # several tasks of a service wait for one connection

    @property
    def connected(self) -> bool:
        return self._nc is not None and self._nc.is_connected

    @property
    def connections(self) -> int:
        """How often it has connected; what was sent before it did so again may be lost."""
        return self._connections

    @property
    def nc(self) -> Client:
        if self._nc is None:
            raise BusError(f"NATS at {self.where} has not been reached yet")
        return self._nc

    @property
    def js(self) -> JetStreamContext:
        """JetStream; each call that it makes ends after CALL_DEADLINE_S."""
        if self._js is None:
            self._js = self.nc.jetstream(timeout=CALL_DEADLINE_S)
        return self._js

    async def connect(self) -> None:
        """Return once connected, however long the server takes to come; later losses heal by themselves."""
        async with self._connecting:
            await self._connect()

    async def _connect(self) -> None:
        for wait_s in backoff_s():
            if self._nc is not None:
                return
            try:
                self._nc = await nats.connect(
                    servers=self._servers,
                    name=self._name,
                    no_echo=not self._echo,
                    connect_timeout=_CONNECT_DEADLINE_S,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.5,
                    ping_interval=5,
                    max_outstanding_pings=2,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                )
                self._connections += 1
                self._log.info("connected to NATS")
            except (OSError, nats.errors.Error, TimeoutError) as error:
                self._say("waiting for NATS at %s: %s", self.where, error or type(error).__name__)
                await asyncio.sleep(wait_s)

    def _say(self, text: str, *args: object) -> None:
        """At most a line in ten seconds: a client that retries for ever must not fill a disk."""
        now_s = time.monotonic()
        if now_s - self._said_s > 10:
            self._said_s = now_s
            self._log.warning(text, *args)

    async def _on_error(self, error: Exception) -> None:
        awaited = "NATS" if self._connections else "waiting for NATS"
        self._say("%s at %s: %s", awaited, self.where, str(error) or type(error).__name__)

    async def _on_disconnected(self) -> None:
        if self._closing:
            return
        self._log.warning("NATS is away; serving goes on with what is known")

    async def _on_reconnected(self) -> None:
        self._connections += 1
        self._log.info("NATS is back")

    async def publish(self, subject: str, data: bytes, kind: str) -> bool:
        """Send and forget; while NATS is away the message is dropped and counted under `kind`."""
        if self.connected:
            try:
                await self.nc.publish(subject, data)
                return True
            except nats.errors.Error:
                pass
        DROPPED.labels(kind).inc()
        return False

    def publish_all(self, messages: Iterable[tuple[str, bytes, str]]) -> bool:
        """Send many and forget: subject, data, and an id by which JetStream drops what it has, or none.
        Nothing is sent while NATS is away, and False returned.

        The client's own call for one message costs more than all else that is done for a record, and wakes
        tasks up; so the protocol's lines are made here, and written at once.
        """
        if not self.connected:
            return False
        lines: list[bytes] = []
        for subject, data, message_id in messages:
            if message_id:
                head = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id.encode()
                command = f"HPUB {subject} {len(head)} {len(head) + len(data)}\r\n"
                lines += (command.encode(), head, data, b"\r\n")
            else:
                lines += (f"PUB {subject} {len(data)}\r\n".encode(), data, b"\r\n")
        transport = self.nc._transport
        if transport is None:
            return False
        transport.write(b"".join(lines))
        return True

    async def ensure_stream(
        self,
        name: str,
        subjects: list[str],
        max_age_s: float,
        max_bytes: int,
        duplicate_window_s: float = 120,
    ) -> None:
        """Create the stream if it is missing; one that exists keeps the limits its operator gave it."""
        try:
            await self.js.stream_info(name)
        except NotFoundError:
            await self.js.add_stream(
                StreamConfig(
                    name=name,
                    subjects=subjects,
                    max_age=max_age_s,
                    max_bytes=max_bytes,
                    duplicate_window=min(duplicate_window_s, max_age_s),
                    storage=StorageType.FILE,
                    allow_direct=True,
                )
            )

    async def kv(
        self, bucket: str, history: int = 1, ttl_s: float | None = None, max_bytes: int = -1
    ) -> KeyValue:
        """The bucket, created if it is missing."""
        try:
            return await self.js.key_value(bucket)
        except BucketNotFoundError:
            return await self.js.create_key_value(
                bucket=bucket,
                history=history,
                ttl=ttl_s,
                max_bytes=max_bytes,
                storage=StorageType.FILE,
                direct=True,
            )

    async def close(self) -> None:
        """Send what is pending, at most 1 s, and close."""
        self._closing = True
        if self._nc is not None:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self._nc.flush(timeout=1), 1)
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self._nc.close(), 2)
