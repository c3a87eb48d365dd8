"""Whether D still holds a conversation after a pause: by how long it was idle, and how full D's memory is."""

from bisect import bisect_right

import msgspec

IDLE_S = (10.0, 30.0, 60.0, 180.0, 600.0, 1800.0)  # upper borders; longer is the last class
KV_USE = (0.5, 0.7, 0.85, 0.95)
TREAT_AS_CACHED = 0.5  # below this probability a turn is planned as if nothing were cached
_MAX_N = 500.0
_HALF_LIFE_S = 1800.0  # so that a class that is not tried any more is trusted again in the end
_DECAY_EVERY_S = 60.0
_PRIOR_N = 4.0


class Survival(msgspec.Struct):
    """Kept and seen turns per class of idle time and KV pressure, old ones forgotten."""

    at_s: float = 0.0
    seen: list[list[float]] = msgspec.field(
        default_factory=lambda: [[0.0] * (len(KV_USE) + 1) for _ in range(len(IDLE_S) + 1)]
    )
    kept: list[list[float]] = msgspec.field(
        default_factory=lambda: [[0.0] * (len(KV_USE) + 1) for _ in range(len(IDLE_S) + 1)]
    )

    def observe(self, idle_s: float, kv_use: float, survived: bool, now_s: float) -> None:
        if now_s - self.at_s >= _DECAY_EVERY_S:
            self._decay(0.5 ** ((now_s - self.at_s) / _HALF_LIFE_S))
            self.at_s = now_s
        i, k = bisect_right(IDLE_S, idle_s), bisect_right(KV_USE, kv_use)
        if self.seen[i][k] >= _MAX_N:
            self.kept[i][k] *= 1 - 1 / _MAX_N
            self.seen[i][k] *= 1 - 1 / _MAX_N
        self.seen[i][k] += 1.0
        self.kept[i][k] += float(survived)

    def _decay(self, left: float) -> None:
        for counts in (self.seen, self.kept):
            for row in counts:
                row[:] = [n * left for n in row]

    def grid(self) -> list[list[float]]:
        """The probability per class: never more after a longer pause or under more pressure.

        A class without evidence is as good as its better neighbours, and those without any are trusted:
        to go and see costs one slow turn, and teaches.
        """
        found = [[1.0] * len(row) for row in self.seen]
        for i, row in enumerate(self.seen):
            for k, n in enumerate(row):
                above = min(found[i - 1][k] if i else 1.0, found[i][k - 1] if k else 1.0)
                own = (self.kept[i][k] + _PRIOR_N * above) / (n + _PRIOR_N)
                found[i][k] = min(above, own)
        return found


def probability(grid: list[list[float]], idle_s: float, kv_use: float) -> float:
    """The chance that D still holds the conversation; 1 where nothing is known (an empty grid)."""
    if not grid:
        return 1.0
    row = grid[min(bisect_right(IDLE_S, idle_s), len(grid) - 1)]
    return row[min(bisect_right(KV_USE, kv_use), len(row) - 1)]


def distrusted(grid: list[list[float]]) -> list[tuple[int, int]]:
    """The classes in which a turn is planned as if nothing were cached."""
    return [(i, k) for i, row in enumerate(grid) for k, p in enumerate(row) if p < TREAT_AS_CACHED]
