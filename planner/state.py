"""What the planner learned, saved in a bucket together with which turns it was learned from.

Both are one value, written by compare-and-set, so that a turn counts once: a leader that was replaced can
neither save nor, since turns are acknowledged after saving, take a turn away from its successor.
"""

import asyncio
import logging
from typing import TypeVar

import msgspec
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from ppd.core import streams
from ppd.core.learning.learner import Learned
from ppd.core.records import BadRecordError, Record, decode
from ppd.runtime.bus import Bus
from ppd.runtime.streams import bucket, value_of

_STATE, _PRIOR = ".state", ".prior"

R = TypeVar("R", bound=Record)


class FencedError(Exception):
    """A later leader has claimed the state; this one must not write any more."""


class SavedState(Record):
    """One table's learner. `applied` are ranges of the stream's sequence numbers."""

    model: str
    placement: str
    token: int  # of the leader that wrote it, for people
    stream_id: str = ""
    applied: tuple[tuple[int, int], ...] = ()
    turns: int = 0  # applied so far
    learns_after: int = 0  # the stream's newest message at the last rebuild: none up to it teaches
    learned: Learned = msgspec.field(default_factory=Learned)
    v: int = 1


def state_key(table: str) -> str:
    return table + _STATE


def prior_key(table: str) -> str:
    """Where the table is kept that what was learned is relative to."""
    return table + _PRIOR


class LearnerStore:
    """The bucket PPD_LEARNER, for one writer: what it did not read or write itself it cannot replace."""

    def __init__(self, bus: Bus, namespace: str, logger: logging.Logger) -> None:
        self._bus = bus
        self._stream = streams.learners(namespace)
        self._log = logger
        self._kv: KeyValue | None = None
        self._revisions: dict[str, int] = {}
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        self._kv = await bucket(self._bus, self._stream, owner=True)

    @property
    def _open_kv(self) -> KeyValue:
        if self._kv is None:
            raise RuntimeError("open() first")
        return self._kv

    async def tables(self) -> list[str]:
        """The keys of the tables that have a saved learner."""
        every = self._stream.subjects[0]
        info = await self._bus.js.stream_info(self._stream.name, subjects_filter=every)
        prefix = every.removesuffix(">")
        keys = [subject.removeprefix(prefix) for subject in info.state.subjects or {}]
        return sorted(key.removesuffix(_STATE) for key in keys if key.endswith(_STATE))

    def revision(self, key: str) -> int:
        """Of what this planner read or wrote last; 0 if it has done neither."""
        return self._revisions.get(key, 0)

    async def read(self, key: str, kind: type[R]) -> R | None:
        """None if there is none, or none that can be read (said in the log)."""
        try:
            entry = await self._open_kv.get(key)
        except KeyNotFoundError:
            self._revisions.pop(key, None)
            return None
        self._revisions[key] = entry.revision or 0
        try:
            return decode(entry.value or b"", kind)
        except BadRecordError as error:
            self._log.error("%s cannot be read and starts anew: %s", key, error)
            return None

    async def write(self, key: str, record: Record) -> None:
        """Raises FencedError if another planner wrote since this one read or wrote it, and TooLargeError."""
        data = value_of(self._bus, f"what was learned of {key}", record)
        async with self._lock:
            revision = self._revisions.get(key)
            try:
                self._revisions[key] = await (
                    self._open_kv.create(key, data)
                    if revision is None
                    else self._open_kv.update(key, data, last=revision)
                )
            except KeyWrongLastSequenceError as error:
                raise FencedError(f"{key} was claimed by another planner") from error
