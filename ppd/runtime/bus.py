"""NATS as the services use it: connects when the server comes, reconnects for ever, never blocks a caller."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.js import JetStreamContext
from prometheus_client import Counter

from ppd.runtime.endpoints import EndpointError, check_nats, redacted
from ppd.runtime.tasks import OutageError, backoff_s

DROPPED = Counter("ppd_nats_dropped_messages", "Messages not sent because NATS was away", ["kind"])

CALL_DEADLINE_S = 3.0
_CONNECT_DEADLINE_S = 2.0

Message = tuple[str, bytes, Mapping[str, str] | None]  # subject, data, headers


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
        self.log = logger or logging.getLogger(__name__)
        self._nc: Client | None = None
        self._js: JetStreamContext | None = None
        self._up = asyncio.Event()
        self._changes: set[asyncio.Event] = set()
        self._connections = 0
        self._closing = False
        self._logged_s = 0.0
        self._connecting = asyncio.Lock()  # several tasks of a service wait for one connection
        self._sending: asyncio.Task[None] | None = None
        self.streams_seen: set[str] = set()  # by ppd.runtime.streams

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
        """Return while connected, however long the server takes to come, or to come back."""
        async with self._connecting:
            await self._connect()
        await self._up.wait()

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
                self._up.set()
                self.log.info("connected to NATS")
                if self._socket() is None:
                    self.log.warning("records are sent one by one: this connection's socket is out of reach")
            except (OSError, nats.errors.Error, TimeoutError) as error:
                self._warn("waiting for NATS at %s: %s", self.where, error or type(error).__name__)
                await asyncio.sleep(wait_s)

    def _warn(self, text: str, *args: object) -> None:
        """At most a line in ten seconds: a client that retries for ever must not fill a disk."""
        now_s = time.monotonic()
        if now_s - self._logged_s > 10:
            self._logged_s = now_s
            self.log.warning(text, *args)

    async def _on_error(self, error: Exception) -> None:
        awaited = "NATS" if self._connections else "waiting for NATS"
        self._warn("%s at %s: %s", awaited, self.where, str(error) or type(error).__name__)

    async def _on_disconnected(self) -> None:
        self._up.clear()
        if not self._closing:
            self.log.warning("NATS is away; serving goes on with what is known")

    async def _on_reconnected(self) -> None:
        self._connections += 1
        self._up.set()
        self.log.info("NATS is back")
        for changed in self._changes:
            changed.set()

    @contextlib.asynccontextmanager
    async def changes(self, stream: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set whenever `stream` may be another than it was: NATS is back after an outage, or
        says that the stream was deleted. The caller clears it."""
        changed = asyncio.Event()

        async def deleted(_: Msg) -> None:
            changed.set()

        advisories = await self.nc.subscribe(f"$JS.EVENT.ADVISORY.STREAM.DELETED.{stream}", cb=deleted)
        self._changes.add(changed)
        try:
            yield changed
        finally:
            self._changes.discard(changed)
            with contextlib.suppress(nats.errors.Error):
                await advisories.unsubscribe()

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

    def publish_all(self, messages: Iterable[Message]) -> bool:
        """Send many and forget. False, and nothing is sent, while NATS is away or the batch before is still
        on its way: the caller tries again.

        The client's own call for one message costs more than all else that is done for a record, and wakes
        tasks up; so the protocol's lines are made here, and written at once.
        """
        if not self.connected:
            return False
        socket = self._socket()
        if socket is None:
            return self._send(list(messages))
        most_bytes = self.nc.max_payload
        lines: list[bytes] = []
        for subject, data, headers in messages:
            head = _head(headers) if headers else b""
            size_bytes = len(head) + len(data)
            if size_bytes > most_bytes:  # the server would close the connection
                self._drop_large(subject, size_bytes)
            elif head:
                lines += (f"HPUB {subject} {len(head)} {size_bytes}\r\n".encode(), head, data, b"\r\n")
            else:
                lines += (f"PUB {subject} {size_bytes}\r\n".encode(), data, b"\r\n")
        socket.write(b"".join(lines))  # type: ignore[no-untyped-call]
        return True

    def _drop_large(self, subject: str, size_bytes: int) -> None:
        DROPPED.labels("too-large").inc()
        self._warn(
            "a message on %s is dropped: its %d bytes are more than NATS takes (max_payload %d)",
            *(subject, size_bytes, self.nc.max_payload),
        )

    async def sent(self) -> None:
        """Return once what `publish_all` took is on its way: what is published after this comes after it."""
        if self._sending is not None:
            await asyncio.wait([self._sending])

    def _socket(self) -> TcpTransport | None:
        """The client's own writer, which is no part of its API (pyproject.toml pins the version). None where
        the client has none, or one that sends nothing before it is asked to (WebSocket)."""
        transport = getattr(self.nc, "_transport", None)
        return transport if isinstance(transport, TcpTransport) else None

    def _send(self, messages: list[Message]) -> bool:
        """By the client's public API, and in order: one batch at a time."""
        if self._sending is not None and not self._sending.done():
            return False
        self._sending = asyncio.create_task(self._send_each(messages))
        return True

    async def _send_each(self, messages: list[Message]) -> None:
        for number, (subject, data, headers) in enumerate(messages):
            try:
                await self.nc.publish(subject, data, headers=dict(headers) if headers else None)
            except nats.errors.MaxPayloadError:
                self._drop_large(subject, len(data))
            except nats.errors.Error as error:
                DROPPED.labels("batch").inc(len(messages) - number)
                self._warn("%d messages were not sent: %s", len(messages) - number, error)
                return

    async def close(self) -> None:
        """Send what is pending, at most 1 s, and close."""
        self._closing = True
        if self._nc is not None:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self._nc.flush(timeout=1), 1)
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self._nc.close(), 2)


def _head(headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()
