"""The bucket PPD_TABLE as a planner knows it: per key the last good snapshot, set by compare-and-set."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from planner.metrics import TABLE_VERSION, TABLES_REFUSED, show_table
from planner.newest_versions import NewestVersions
from ppd.core import streams
from ppd.core.names import table_key
from ppd.core.records import BadRecordError, TableSnapshot, decode
from ppd.core.table import Table, TableError
from ppd.runtime.bus import Bus
from ppd.runtime.streams import TooLargeError, bucket, value_of

MAX_TABLES = 256
_MAX_TABLE_BYTES = 512 * 1024  # of one value: NATS takes 1 MiB


class UnknownTableError(LookupError):
    """There is no such table, or no such version of it any more; the message says which there are."""


class ConflictError(Exception):
    """Another planner published in between: what it wrote stands."""


def check(data: bytes, key: str) -> TableSnapshot:
    """`data` as the table that may stand at `key`. Raises TableError for anything else."""
    if len(data) > _MAX_TABLE_BYTES:
        raise TableError(f"{len(data)} bytes are more than a table may have ({_MAX_TABLE_BYTES})")
    try:
        snapshot = decode(data, TableSnapshot)
    except BadRecordError as error:
        raise TableError(str(error)) from error
    Table(snapshot)
    if table_key(snapshot.model, snapshot.placement) != key:
        raise TableError(f"it is the table of {snapshot.model} on {snapshot.placement}")
    return snapshot


class Tables:
    """Reads by `refresh`; `repair`, `create` and `change` are for the leader alone.

    What the bucket holds is taken over only if it is a good table and not older than what is known. The
    known ones outlive the bucket: `repair` writes them back after it was lost or spoilt.
    """

    def __init__(self, bus: Bus, newest: NewestVersions, namespace: str, logger: logging.Logger) -> None:
        self._bus = bus
        self._newest = newest
        self._stream = streams.tables(namespace)
        self._log = logger
        self._kv: KeyValue | None = None
        self._revisions: dict[str, int] = {}  # of what the bucket holds, good or not
        self._lock = asyncio.Lock()
        self.known: dict[str, TableSnapshot] = {}
        self.problems: dict[str, str] = {}  # key -> why the bucket's value was refused
        self.too_large: dict[str, str] = {}  # key -> why it cannot be published

    async def open(self) -> None:
        """Find the bucket, or make it."""
        self._kv = await bucket(self._bus, self._stream, owner=True)

    @property
    def _open_kv(self) -> KeyValue:
        if self._kv is None:
            raise RuntimeError("open() first")
        return self._kv

    def models(self) -> set[str]:
        return {snapshot.model for snapshot in self.known.values()}

    async def refresh(self) -> None:
        """Read what is new in the bucket."""
        every = self._stream.subjects[0]
        info = await self._bus.js.stream_info(self._stream.name, subjects_filter=every)
        prefix = every.removesuffix(">")
        keys = {subject.removeprefix(prefix) for subject in info.state.subjects or {}}
        for key in self._revisions.keys() - keys:
            del self._revisions[key]
        for key in sorted(keys):
            try:
                entry = await self._open_kv.get(key)
            except KeyNotFoundError:
                self._revisions.pop(key, None)
                continue
            if self._revisions.get(key) != entry.revision:
                self._revisions[key] = entry.revision or 0
                self._take(key, entry.value or b"")

    def _take(self, key: str, data: bytes) -> None:
        known = self.known.get(key)
        try:
            snapshot = check(data, key)
            if known is not None and snapshot.version < known.version:
                raise TableError(f"version {snapshot.version} is older than {known.version}, which was known")
            if known is None and len(self.known) >= MAX_TABLES:
                raise TableError(f"more than {MAX_TABLES} tables")
        except TableError as error:
            self.problems[key] = str(error)
            TABLES_REFUSED.inc()
            self._log.error("refusing the table at %s, the last good one stays: %s", key, error)
            return
        self._know(key, snapshot)

    def _know(self, key: str, snapshot: TableSnapshot) -> None:
        self.known[key] = snapshot
        self.problems.pop(key, None)
        TABLE_VERSION.labels(key).set(snapshot.version)
        show_table(key, snapshot)

    async def repair(self) -> None:
        """Write back each known table that the bucket lost, or holds a refused value in place of."""
        for key, snapshot in list(self.known.items()):
            if key not in self._revisions or key in self.problems:
                self._log.warning("writing version %d of %s back", snapshot.version, key)
                async with self._lock:
                    with contextlib.suppress(TooLargeError):
                        await self._write(key, snapshot)

    async def create(self, snapshot: TableSnapshot, explore_share: float) -> TableSnapshot | None:
        """Publish a key's first table; None if there is one already.

        It is version 1, or the one after the newest that the key ever had. Raises EtcdError, TooLargeError.
        """
        key = table_key(snapshot.model, snapshot.placement)
        async with self._lock:
            if key in self.known or len(self.known) >= MAX_TABLES:
                return None
            stamped = msgspec.structs.replace(
                snapshot,
                version=await self._newest.newest(key) + 1,
                created_unix_s=time.time(),
                explore_share=explore_share,
            )
            await self._write(key, stamped)
            return stamped

    async def change(self, key: str, edit: Callable[[TableSnapshot], TableSnapshot]) -> TableSnapshot:
        """Publish `edit(current)` as the next version.

        Raises UnknownTableError, TableError if the result cannot be trusted, ConflictError if another
        planner was faster, TooLargeError.
        """
        async with self._lock:
            current = self.find(key)
            changed = msgspec.structs.replace(
                edit(current), version=current.version + 1, created_unix_s=time.time()
            )
            await self._write(key, changed)
            return changed

    async def _write(self, key: str, snapshot: TableSnapshot) -> None:
        try:
            data = value_of(self._bus, f"the table of {snapshot.model} on {snapshot.placement}", snapshot)
        except TooLargeError as error:
            if key not in self.too_large:
                self._log.error("cannot publish %s", error)
            self.too_large[key] = str(error)
            raise
        self.too_large.pop(key, None)
        check(data, key)
        await self._newest.rise(key, snapshot.version)
        try:
            revision = self._revisions.get(key)
            written = await (
                self._open_kv.create(key, data)
                if revision is None
                else self._open_kv.update(key, data, last=revision)
            )
        except KeyWrongLastSequenceError as error:
            await self.refresh()
            raise ConflictError(f"{key} was changed by another planner") from error
        self._revisions[key] = written
        self._know(key, snapshot)
        self._log.info("published version %d of %s (%s)", snapshot.version, key, snapshot.source)

    def find(self, key: str) -> TableSnapshot:
        """Raises UnknownTableError."""
        if key not in self.known:
            raise UnknownTableError(
                f"there is no table {key}; known: {', '.join(sorted(self.known)) or 'none'}"
            )
        return self.known[key]

    async def version(self, key: str, version: int) -> TableSnapshot:
        """An older version, from the bucket's history. Raises UnknownTableError."""
        current = self.find(key)
        if current.version == version:
            return current
        kept = await self.history(key)
        found = next((snapshot for snapshot in kept if snapshot.version == version), None)
        if found is None:
            have = ", ".join(str(snapshot.version) for snapshot in kept)
            which = f"{current.model} on {current.placement}"
            raise UnknownTableError(f"version {version} of {which} is not kept; there are {have or 'none'}")
        return found

    async def history(self, key: str) -> list[TableSnapshot]:
        """The good versions that are kept, oldest first."""
        subject = self._stream.subjects[0].removesuffix(">") + key
        good: list[TableSnapshot] = []
        sequence = 1
        for _ in range(streams.TABLE_HISTORY):
            try:
                # One by one: a watch of the key leaves its consumer behind at the server.
                message = await self._bus.js.get_msg(
                    self._stream.name, seq=sequence, subject=subject, next=True
                )
            except NotFoundError:
                break
            with contextlib.suppress(TableError):
                good.append(check(message.data or b"", key))
            sequence = (message.seq or sequence) + 1
        return good
