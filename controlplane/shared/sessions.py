"""Sessions shared with other frontends, and with the other processes of this one, through a NATS bucket.

They are written behind, one record per conversation: under the key that its next turn must extend. The record
of the turn before is deleted. Who else serves hears each write at once, by a plain subscription, and keeps it
unread for a while, so that the next turn finds it without a question. Only what was not heard (it was written
before this process began) is asked of the bucket.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from itertools import islice

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from controlplane.telemetry import metrics
from ppd.core import streams
from ppd.core.records import BadRecordError, SessionRecord, decode, encode
from ppd.runtime.bus import Bus, BusError, Message
from ppd.runtime.streams import ensure

_GRACE_ALONE_S = 0.005  # while no other frontend was heard
_MAX_PENDING = 10_000
_MAX_HEARD = 20_000
_MAX_READS = 64  # at once; beyond them an unknown session is simply unknown
_PAUSE_S = 0.002
_BATCH = 256
_RETRY_S = 1.0
_CHECK_S = 10.0
_DELETED = {"KV-Operation": "DEL", "Nats-TTL": "1s"}  # the mark of a deletion goes by itself
_ERRORS = (TimeoutError, NatsError, BusError, BadRecordError, OSError)


class Sharing:
    """Reads and writes the bucket for one process.

    `bus`: a connection of its own, which must not hear its own messages. `wait_s`: how long a turn waits for
    the bucket, and for a record that is still on its way. `others`: whether other processes surely serve.
    """

    def __init__(
        self,
        bus: Bus,
        namespace: str,
        ttl_s: float,
        wait_s: float,
        others: bool,
        logger: logging.Logger,
    ) -> None:
        self._bus = bus
        self._stream = streams.sessions(namespace, ttl_s)
        self._ttl_s = ttl_s
        self._wait_s = wait_s
        self._log = logger
        self._kv: KeyValue | None = None
        self.reached = asyncio.Event()  # the bucket was: sessions go to, and come from, other frontends
        self._reads = 0
        self._pending: dict[str, SessionRecord | None] = {}  # None: to be deleted
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._prefix = self._stream.subjects[0].removesuffix(">")
        self._heard: OrderedDict[str, bytes] = OrderedDict()
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self._others = others  # or another frontend was heard

    @property
    def pending(self) -> int:
        """Sessions that are not written yet."""
        return len(self._pending)

    def put(self, key: str, record: SessionRecord, replaced: str = "") -> None:
        """Write soon, and delete what is at `replaced`; bounded, the oldest dropped first."""
        if replaced and replaced != key and self._pending.pop(replaced, None) is None:
            self._add(replaced, None)
        self._add(key, record)

    def _add(self, key: str, record: SessionRecord | None) -> None:
        if len(self._pending) >= _MAX_PENDING:
            self._pending.pop(next(iter(self._pending)))
            metrics.RECORDS.labels("session-dropped").inc()
        self._pending[key] = record
        if self._timer is None:
            self._timer = self._loop.call_later(_PAUSE_S, self._write)

    async def get(self, key: str) -> SessionRecord | None:
        """What another frontend wrote under this key; None where nothing is, or not in time."""
        if (heard := self._take(key)) is not None:
            return heard
        if self._kv is None or not self._bus.connected or self._reads >= _MAX_READS:
            return None
        self._reads += 1
        arrival = self._awaited.setdefault(key, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(self._wait_s):
                entry = await self._kv.get(key)
            record = decode(entry.value or b"", SessionRecord)
        except KeyNotFoundError:
            return await self._wait(key, arrival)
        except _ERRORS:
            metrics.SESSION_READS.labels("failed").inc()
            return None
        finally:
            self._reads -= 1
            self._awaited.pop(key, None)
        metrics.SESSION_READS.labels("found").inc()
        return record

    async def _wait(self, key: str, arrival: asyncio.Future[None]) -> SessionRecord | None:
        await asyncio.wait([arrival], timeout=self._wait_s if self._others else _GRACE_ALONE_S)
        record = self._take(key)
        if record is None:
            metrics.SESSION_READS.labels("unknown").inc()
        return record

    def _take(self, key: str) -> SessionRecord | None:
        data = self._heard.pop(key, None)
        if data is None:
            return None
        try:
            record = decode(data, SessionRecord)
        except BadRecordError as error:
            self._log.warning("ignoring a shared session: %s", error)
            return None
        if time.time() - record.last_unix_s > self._ttl_s:
            return None
        metrics.SESSION_READS.labels("heard").inc()
        return record

    async def claim(self, key: str, record: SessionRecord) -> SessionRecord:
        """Write now, unless another frontend wrote under this key first: then what that one wrote. Where the
        bucket does not answer in time, `record` stands."""
        if self._kv is None or not self._bus.connected:
            return record
        try:
            async with asyncio.timeout(self._wait_s):
                try:
                    await self._kv.create(key, encode(record))
                    return record
                except KeyWrongLastSequenceError:
                    entry = await self._kv.get(key)
            metrics.SESSION_READS.labels("claimed").inc()
            return decode(entry.value or b"", SessionRecord)
        except (KeyNotFoundError, *_ERRORS):
            metrics.SESSION_READS.labels("failed").inc()
            return record

    async def run(self) -> None:
        """Hear what others write, and keep the bucket there. For a Supervisor: raises on an outage; what was
        not written is kept, bounded."""
        await self._bus.connect()
        subscription = await self._bus.nc.subscribe(self._prefix + ">", cb=self._hear)
        try:
            async with self._bus.changes(self._stream.name) as changed:
                await ensure(self._bus, self._stream, owner=True)
                self._kv = await self._bus.js.key_value(self._stream.bucket)
                self.reached.set()
                while True:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), _CHECK_S)
                    await self._bus.connect()
                    changed.clear()
                    await ensure(self._bus, self._stream)
        finally:
            await subscription.unsubscribe()

    def _write(self) -> None:
        """A batch of what waits, and soon the next one. No acknowledgement is awaited: a session that is lost
        costs one P->D turn."""
        self._timer = None
        batch = list(islice(self._pending.items(), _BATCH))
        sent = self._kv is not None and self._bus.publish_all(self._message(*each) for each in batch)
        if sent:
            for key, _ in batch:
                del self._pending[key]
        if self._pending:
            self._timer = self._loop.call_later(_PAUSE_S if sent else _RETRY_S, self._write)

    def _message(self, key: str, record: SessionRecord | None) -> Message:
        if record is None:
            return self._prefix + key, b"", _DELETED
        return self._prefix + key, encode(record), None

    async def _hear(self, message: Msg) -> None:
        key = message.subject.removeprefix(self._prefix)
        self._others = True
        if not message.data:  # deleted; a client that asks for its last answer again may still need it
            return
        self._heard[key] = message.data
        if len(self._heard) > _MAX_HEARD:
            self._heard.popitem(last=False)
        arrival = self._awaited.get(key)
        if arrival is not None and not arrival.done():
            arrival.set_result(None)
