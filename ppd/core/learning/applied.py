"""Which messages of a stream were applied: a set of sequence numbers that stays small."""

from bisect import bisect_right
from collections.abc import Iterable


class Applied:
    """Sequence numbers as sorted, disjoint, inclusive ranges that do not touch.

    Delivered in order they make one range. `prune` closes what lies below the consumer's acknowledgement
    floor, from where nothing is delivered again.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """Raises ValueError if `ranges` are not sorted, disjoint and apart."""
        self.ranges: list[tuple[int, int]] = [(low, high) for low, high in ranges]
        before = -1
        for low, high in self.ranges:
            if (before >= 0 and low <= before + 1) or high < low or low < 0:
                raise ValueError(f"({low}, {high}) does not follow {before}")
            before = high

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self.ranges, (sequence, float("inf"))) - 1
        return at >= 0 and sequence <= self.ranges[at][1]

    def add(self, sequence: int) -> bool:
        """Whether it was not there yet."""
        at = bisect_right(self.ranges, (sequence, float("inf")))
        before = self.ranges[at - 1] if at else None
        after = self.ranges[at] if at < len(self.ranges) else None
        if before is not None and sequence <= before[1]:
            return False
        low = before[0] if before is not None and before[1] == sequence - 1 else sequence
        high = after[1] if after is not None and after[0] == sequence + 1 else sequence
        self.ranges[at - (low < sequence) : at + (high > sequence)] = [(low, high)]
        return True

    def prune(self, floor: int) -> None:
        """Treat all up to and with `floor` as applied."""
        if floor < 0:
            return
        kept = [(low, high) for low, high in self.ranges if high > floor]
        high = floor
        if kept and kept[0][0] <= floor + 1:
            high = kept.pop(0)[1]
        self.ranges = [(0, high), *kept]
