"""What the processes of one frontend show of each other: their recent turns, and how many wait.

Each writes its own part of a memory that all share, and reads all parts. There is no lock: a record that is
read while it is written over fails its checksum and is passed over until the next look.
"""

import mmap
import struct
import zlib
from collections import deque
from typing import NamedTuple

from ppd.core.records import BadRecordError, TurnRecord, decode, encode

LATE = 256  # turns
_GONE_S = 5.0  # a process that reported nothing for this long is not counted
_SLOT_BYTES = 4096
_HEAD = struct.Struct("<IId")  # of a slot: length, checksum, when the turn ended
_GAUGES = struct.Struct("<qqqd")  # of a part: Gauges, when they were said
_PART_BYTES = _GAUGES.size + LATE * _SLOT_BYTES


class Gauges(NamedTuple):
    """What one process holds now, or all together."""

    sessions: int = 0
    running: int = 0
    queued: int = 0


def shared_memory(processes: int) -> mmap.mmap:
    """For Siblings in each of `processes` processes, which must be forked after this."""
    return mmap.mmap(-1, processes * _PART_BYTES)


class Siblings:
    """Without a `memory` the one process there is."""

    def __init__(self, memory: mmap.mmap | None = None, processes: int = 1, own: int = 0) -> None:
        self._memory = memory
        self._parts = [number * _PART_BYTES for number in range(processes)]
        self._own = self._parts[own]
        self.own: deque[TurnRecord] = deque(maxlen=LATE)  # of this process alone
        # After the newest of a process that was here before and died.
        ended = [head[2] for head in self._heads(self._own)]
        self._next = (ended.index(max(ended)) + 1) % LATE if any(ended) else 0

    def add(self, record: TurnRecord) -> None:
        """A turn ended. One whose record is longer than its slot is seen in its own process alone."""
        self.own.append(record)
        if self._memory is None:
            return
        data = encode(record)
        if len(data) > _SLOT_BYTES - _HEAD.size:
            return
        at = self._slot(self._own, self._next)
        self._next = (self._next + 1) % LATE
        self._memory[at + _HEAD.size : at + _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._memory, at, len(data), zlib.crc32(data), record.ended_unix_s)

    def late(self) -> list[TurnRecord]:
        """The last turns of all processes, oldest first."""
        memory = self._memory
        if memory is None:
            return list(self.own)
        heads = [
            (ended, self._slot(part, slot), length, checksum)
            for part in self._parts
            for slot, (length, checksum, ended) in enumerate(self._heads(part))
            if length
        ]
        found = [_read(memory, *head) for _, *head in sorted(heads)[-LATE:]]
        return [record for record in found if record is not None]

    def say(self, gauges: Gauges, now_s: float) -> None:
        """`now_s`: of the monotonic clock, which all processes of a machine share."""
        if self._memory is not None:
            _GAUGES.pack_into(self._memory, self._own, *gauges, now_s)

    def total(self, own: Gauges, now_s: float) -> Gauges:
        """`own` plus the recent gauges of the other processes."""
        if self._memory is None:
            return own
        sums = list(own)
        for part in self._parts:
            *values, said_s = _GAUGES.unpack_from(self._memory, part)
            if part != self._own and now_s - said_s < _GONE_S:
                sums = [a + b for a, b in zip(sums, values, strict=True)]
        return Gauges(*sums)

    @staticmethod
    def _slot(part: int, slot: int) -> int:
        return part + _GAUGES.size + slot * _SLOT_BYTES

    def _heads(self, part: int) -> list[tuple[int, int, float]]:
        if self._memory is None:
            return []
        return [_HEAD.unpack_from(self._memory, self._slot(part, slot)) for slot in range(LATE)]


def _read(memory: mmap.mmap, at: int, length: int, checksum: int) -> TurnRecord | None:
    data = memory[at + _HEAD.size : at + _HEAD.size + length]
    if zlib.crc32(data) != checksum:
        return None
    try:
        return decode(data, TurnRecord)
    except BadRecordError:
        return None
