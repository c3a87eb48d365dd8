"""Workers in etcd: an agent keeps its record there, and everybody else watches."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable

from msgspec.structs import replace

from ppd.core.names import LEASE_TTL_S, WorkerStatus, worker_key, workers_prefix
from ppd.core.records import BadRecordError, WorkerRecord, decode, encode
from ppd.runtime.etcd import Etcd, EtcdError

_RENEW_S = LEASE_TTL_S / 3
_RELIST_S = 60.0  # a watch that went silent unnoticed is repaired by listing again


class Registration:
    """Keeps one worker's record in etcd under a lease, for as long as `run` runs and a record is set.

    A lost lease (etcd away, a pause of this process) is followed by a new one and the same record; the
    first try after a loss is spread by jitter, so that a cluster does not come back all at once.
    """

    def __init__(self, etcd: Etcd, namespace: str, logger: logging.Logger) -> None:
        self._etcd = etcd
        self._namespace = namespace
        self._log = logger
        self._record: WorkerRecord | None = None
        self._written: WorkerRecord | None = None
        self._changed = asyncio.Event()
        self._lease: int | None = None
        self._lost = False

    @property
    def registered(self) -> bool:
        """Whether what was set is in etcd, as far as is known."""
        return self._record is not None and self._lease is not None and self._written == self._record

    def set(self, record: WorkerRecord | None) -> None:
        """The record to keep there from now on; None takes it away."""
        self._record = record
        self._changed.set()

    async def run(self) -> None:
        """For a Supervisor: raises EtcdError on an outage, to be started again."""
        if self._lost:
            await asyncio.sleep(random.uniform(0, 0.5))
        try:
            while True:
                await self._step()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _RENEW_S)
                self._changed.clear()
        except EtcdError:
            self._lost, self._lease, self._written = True, None, None
            raise

    async def _step(self) -> None:
        record = self._record
        if record is None:
            await self._withdraw()
            return
        if self._written is not None and self._written.worker_id != record.worker_id:
            await self._etcd.delete(worker_key(self._namespace, self._written.worker_id))
            self._written = None
        if self._lease is not None and not await self._etcd.keepalive(self._lease):
            self._log.warning("the lease of %s was lost; registering again", record.worker_id)
            self._lease, self._written = None, None
        if self._lease is None:
            self._lease = await self._etcd.grant(LEASE_TTL_S)
        if self._written != record:
            await self._etcd.put(worker_key(self._namespace, record.worker_id), encode(record), self._lease)
            self._written, self._lost = record, False
            self._log.info("registered %s as %s", record.worker_id, record.status)

    async def _withdraw(self) -> None:
        lease, self._lease = self._lease, None
        written, self._written = self._written, None
        if lease is None:
            return
        if written is not None and written.status is WorkerStatus.READY:
            # A ready worker's record that only goes is taken for one whose lease ended while etcd stalled.
            leaving = replace(written, status=WorkerStatus.DRAINING)
            await self._etcd.put(worker_key(self._namespace, written.worker_id), encode(leaving), lease)
        await self._etcd.revoke(lease)

    async def close(self) -> None:
        """Take the record away now; if etcd is away, its lease ends by itself. Stop `run` first."""
        self._record = None
        with contextlib.suppress(EtcdError):
            await self._withdraw()


class WorkerWatch:
    """The workers, as last known. When etcd is away the last view stays, and `connected` is False."""

    def __init__(
        self,
        etcd: Etcd,
        namespace: str,
        on_change: Callable[[dict[str, WorkerRecord]], None],
        logger: logging.Logger | None = None,
    ) -> None:
        self._etcd = etcd
        self._prefix = workers_prefix(namespace)
        self._on_change = on_change
        self._log = logger or logging.getLogger(__name__)
        self.workers: dict[str, WorkerRecord] = {}
        self.connected = False
        self.synced = asyncio.Event()  # set once the first list came in

    async def run(self) -> None:
        """For a Supervisor: raises EtcdError on an outage, to be started again."""
        try:
            while True:
                listed, revision = await self._etcd.list(self._prefix)
                self._replace(listed)
                self.connected = True
                self.synced.set()
                await self._follow(revision + 1)
        finally:
            self.connected = False

    async def _follow(self, revision: int) -> None:
        until_s = time.monotonic() + _RELIST_S
        async with contextlib.aclosing(self._etcd.watch(self._prefix, revision)) as changes:
            while (left_s := until_s - time.monotonic()) > 0:
                try:
                    key, value = await asyncio.wait_for(anext(changes), left_s)
                except (TimeoutError, StopAsyncIteration):
                    return
                self._apply(key, value)

    def _replace(self, listed: dict[str, bytes]) -> None:
        workers = {key: record for key, value in listed.items() if (record := self._parse(key, value))}
        fresh = {record.worker_id: record for record in workers.values()}
        if fresh != self.workers:
            self.workers = fresh
            self._on_change(self.workers)

    def _apply(self, key: str, value: bytes | None) -> None:
        workers = dict(self.workers)
        if value is None:
            workers.pop(key.removeprefix(self._prefix), None)
        elif record := self._parse(key, value):
            workers[record.worker_id] = record
        if workers != self.workers:
            self.workers = workers
            self._on_change(self.workers)

    def _parse(self, key: str, value: bytes) -> WorkerRecord | None:
        """A record that cannot be read, or sits under another's key, is left out and said."""
        try:
            record = decode(value, WorkerRecord)
        except BadRecordError as error:
            self._log.warning("ignoring the worker at %s: %s", key, error)
            return None
        if self._prefix + record.worker_id != key:
            self._log.warning("ignoring the worker at %s: it calls itself %s", key, record.worker_id)
            return None
        return record
