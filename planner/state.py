"""What the planner learned, saved in a bucket together with which turns it was learned from.

Both are one value, written by compare-and-set, so that a turn counts once: a leader that was replaced can
neither save nor, since turns are acknowledged after saving, take a turn away from its successor.
"""

import logging

from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from ppd.core.learning.applied import Applied
from ppd.core.names import stream_name
from ppd.core.records import BadRecordError, Record, decode, encode
from ppd.runtime.bus import Bus

LEARNER_BUCKET = "PPD_LEARNER"


class FencedError(Exception):
    """A later leader has claimed the state; this one must not write any more."""


class SavedState(Record):
    """One table's learner, as saved. `applied` are ranges of the stream's sequence numbers."""

    model: str
    placement: str
    token: int  # of the leader that wrote it
    stream_id: str = ""
    applied: tuple[tuple[int, int], ...] = ()
    turns: int = 0  # applied so far
    v: int = 1


class Learner:
    """One table's learner in memory: what is saved, and what came since."""

    def __init__(self, saved: SavedState, stream_id: str) -> None:
        self.saved = saved
        self.turns = saved.turns
        self.stream_id = stream_id
        self.applied = Applied(saved.applied if saved.stream_id == stream_id else ())
        self.dirty = False

    def snapshot(self, token: int) -> SavedState:
        return SavedState(
            model=self.saved.model,
            placement=self.saved.placement,
            token=token,
            stream_id=self.stream_id,
            applied=tuple(self.applied.ranges),
            turns=self.turns,
        )


class LearnerStore:
    """The bucket PPD_LEARNER."""

    def __init__(self, bus: Bus, namespace: str, logger: logging.Logger) -> None:
        self._bus = bus
        self._bucket = stream_name(LEARNER_BUCKET, namespace)
        self._log = logger
        self._kv: KeyValue | None = None
        self._revisions: dict[str, int] = {}

    async def open(self) -> None:
        self._kv = await self._bus.kv(self._bucket, history=2)

    @property
    def _open_kv(self) -> KeyValue:
        if self._kv is None:
            raise RuntimeError("open() first")
        return self._kv

    async def keys(self) -> list[str]:
        prefix = f"$KV.{self._bucket}."
        info = await self._bus.js.stream_info(f"KV_{self._bucket}", subjects_filter=prefix + ">")
        return sorted(subject.removeprefix(prefix) for subject in info.state.subjects or {})

    async def read(self, key: str) -> SavedState | None:
        """None if there is none, or none that can be read (said in the log)."""
        try:
            entry = await self._open_kv.get(key)
        except KeyNotFoundError:
            self._revisions.pop(key, None)
            return None
        self._revisions[key] = entry.revision or 0
        try:
            return decode(entry.value or b"", SavedState)
        except BadRecordError as error:
            self._log.error("what was learned for %s cannot be read and starts anew: %s", key, error)
            return None

    async def write(self, key: str, state: SavedState) -> None:
        """Raises FencedError if another planner wrote since this one read or wrote it."""
        revision = self._revisions.get(key)
        try:
            self._revisions[key] = await (
                self._open_kv.create(key, encode(state))
                if revision is None
                else self._open_kv.update(key, encode(state), last=revision)
            )
        except KeyWrongLastSequenceError as error:
            raise FencedError(f"the learner of {key} was claimed by another planner") from error
