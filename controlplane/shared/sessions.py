"""Sessions shared with other frontends, and with the other processes of this one, through a NATS bucket.

They are written behind. Who else serves hears each write at once, by a plain subscription, and keeps it
unread for a while, so that the next turn finds it without a question. Only what was not heard (it was written
before this process began) is asked of the bucket.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from itertools import islice

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from controlplane.telemetry import metrics
from ppd.core import names
from ppd.core.records import BadRecordError, SessionRecord, decode, encode
from ppd.runtime.bus import Bus, BusError

READ_S = 0.1
# For a write that is on its way while its conversation's next turn is here already.
_GRACE_S = 0.02
_GRACE_ALONE_S = 0.005  # while no other frontend was heard
_MAX_PENDING = 10_000
_MAX_HEARD = 20_000
_MAX_READS = 64  # at once; beyond them an unknown session is simply unknown
_PAUSE_S = 0.002
_BATCH = 256
_RETRY_S = 1.0
_BUCKET_BYTES = 1 << 30
_ERRORS = (TimeoutError, NatsError, BusError, BadRecordError, OSError)


class Sharing:
    """`bus`: a connection of its own, which must not hear its own messages."""

    def __init__(self, bus: Bus, namespace: str, ttl_s: float, logger: logging.Logger) -> None:
        self._bus = bus
        self._bucket = names.stream_name(names.SESSIONS_BUCKET, namespace)
        self._ttl_s = ttl_s
        self._log = logger
        self._kv: KeyValue | None = None
        self.reached = asyncio.Event()  # the bucket was: sessions go to, and come from, other frontends
        self._reads = 0
        self._pending: dict[str, SessionRecord] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._prefix = f"$KV.{self._bucket}."
        self._heard: OrderedDict[str, bytes] = OrderedDict()
        self._awaited: dict[str, asyncio.Future[None]] = {}
        self._others = False  # another frontend was heard

    @property
    def pending(self) -> int:
        """Sessions that are not written yet."""
        return len(self._pending)

    def put(self, key: str, record: SessionRecord) -> None:
        """Write soon; bounded, the oldest dropped first."""
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
            async with asyncio.timeout(READ_S):
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
        await asyncio.wait([arrival], timeout=_GRACE_S if self._others else _GRACE_ALONE_S)
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
            async with asyncio.timeout(READ_S):
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
        """Write behind, and hear what others write. For a Supervisor: raises on an outage; what was not
        written is kept, bounded."""
        await self._bus.connect()
        self._kv = await self._bus.kv(self._bucket, history=1, ttl_s=self._ttl_s, max_bytes=_BUCKET_BYTES)
        self.reached.set()
        subscription = await self._bus.nc.subscribe(self._prefix + ">", cb=self._hear)
        try:
            while True:
                if self._timer is None and self._pending:  # they waited for NATS
                    self._write()
                await asyncio.sleep(_RETRY_S)
        finally:
            await subscription.unsubscribe()

    def _write(self) -> None:
        """A batch of what waits, and soon the next one. No acknowledgement is awaited: a session that is lost
        costs one P->D turn."""
        self._timer = None
        if self._kv is None:
            return
        batch = list(islice(self._pending.items(), _BATCH))
        if self._bus.publish_all((self._prefix + key, encode(record), "") for key, record in batch):
            for key, _ in batch:
                del self._pending[key]
            if self._pending:
                self._timer = self._loop.call_later(_PAUSE_S, self._write)

    async def _hear(self, message: Msg) -> None:
        key = message.subject.rpartition(".")[2]
        self._others = True
        self._heard[key] = message.data
        if len(self._heard) > _MAX_HEARD:
            self._heard.popitem(last=False)
        arrival = self._awaited.get(key)
        if arrival is not None and not arrival.done():
            arrival.set_result(None)
