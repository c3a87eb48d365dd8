"""How much dearer, or cheaper, each path is than the prior table says: per cell, per path, and over all.

What is learned is a ratio, measured over prior. A cell that was visited little is taken to be as its path is
elsewhere, and a path that was visited little as the other ones: so a prior from other hardware, off by ten
everywhere, is put right in all cells by a few turns, and the shape of the grid (what load and size do) stays
until a cell's own turns say otherwise.
"""

from collections.abc import Iterator
from math import hypot

import msgspec

from ppd.core.learning.estimate import Decayed
from ppd.core.names import Route

HALF_LIFE_S = 3600.0
CELL_N = 200.0  # turns that a cell remembers
PATH_N = 400.0
FORGET_TO = 4.0  # turns that the past is worth once drift was detected
_CELL_PRIOR_N = 8.0  # turns that the path's ratio is worth in a cell
_PATH_PRIOR_N = 8.0  # turns that the overall ratio is worth for a path
_ALL_PRIOR_N = 1.0  # turns that the prior itself is worth overall
_MIN_SD = 0.1  # of a ratio, relative: no path is steadier than that
_UNKNOWN_SD = 1.0
_BETWEEN_PATHS_SD = 0.5  # how unlike the paths' ratios may be, relative
_BETWEEN_CELLS_SD = 0.2


class Pair(msgspec.Struct):
    """Ratios of TTFT and of TPOT."""

    ttft: Decayed = msgspec.field(default_factory=Decayed)
    tpot: Decayed = msgspec.field(default_factory=Decayed)

    def both(self) -> Iterator[Decayed]:
        yield self.ttft
        yield self.tpot


class Belief(msgspec.Struct, frozen=True):
    """A ratio with its relative standard error, one turn's relative spread, and the cell's own turns."""

    ratio: float
    error: float
    sd: float
    n: float


class Ratios(msgspec.Struct):
    cells: dict[str, dict[Route, Pair]] = {}
    paths: dict[Route, Pair] = {}
    overall: Pair = msgspec.field(default_factory=Pair)

    def observe(self, cell: str, path: Route, ttft: float, tpot: float | None, now_s: float) -> None:
        """Take in one turn's ratios; `tpot` is None where it is not known."""
        own = self.cells.setdefault(cell, {}).setdefault(path, Pair())
        for pair, max_n in (
            (own, CELL_N),
            (self.paths.setdefault(path, Pair()), PATH_N),
            (self.overall, PATH_N),
        ):
            pair.ttft.observe(ttft, now_s, HALF_LIFE_S, max_n)
            if tpot is not None:
                pair.tpot.observe(tpot, now_s, HALF_LIFE_S, max_n)

    def ttft(self, cell: str, path: Route, now_s: float) -> Belief:
        own, group = self._own(cell, path), self.paths.get(path, _NOTHING)
        return _blend(own.ttft, group.ttft, self.overall.ttft, now_s)

    def tpot(self, cell: str, path: Route, now_s: float) -> Belief:
        own, group = self._own(cell, path), self.paths.get(path, _NOTHING)
        return _blend(own.tpot, group.tpot, self.overall.tpot, now_s)

    def _own(self, cell: str, path: Route) -> Pair:
        return self.cells.get(cell, {}).get(path, _NOTHING)

    def forget(self, path: Route) -> None:
        """After drift on `path`: what is known of it becomes a weak guess, in every cell."""
        for pair in (
            *(paths[path] for paths in self.cells.values() if path in paths),
            *([self.paths[path]] if path in self.paths else []),
            self.overall,
        ):
            for decayed in pair.both():
                decayed.forget(FORGET_TO)


_NOTHING = Pair()


def _blend(own: Decayed, path: Decayed, overall: Decayed, now_s: float) -> Belief:
    ratio, error = 1.0, _UNKNOWN_SD
    ratio, error, _ = _toward(ratio, error, overall, _ALL_PRIOR_N, now_s)
    ratio, error, sd = _toward(ratio, hypot(error, _BETWEEN_PATHS_SD), path, _PATH_PRIOR_N, now_s)
    ratio, error, own_sd = _toward(ratio, hypot(error, _BETWEEN_CELLS_SD), own, _CELL_PRIOR_N, now_s)
    n = own.weight(now_s, HALF_LIFE_S)
    return Belief(ratio, error, own_sd if n > _CELL_PRIOR_N else sd, n)


def _toward(
    guess: float, guess_error: float, seen: Decayed, guess_n: float, now_s: float
) -> tuple[float, float, float]:
    """`guess`, worth `guess_n` turns, met with what was seen: ratio, relative error, relative spread.

    Of the guess's own error, the share that the guess still has in the result stays.
    """
    n = seen.weight(now_s, HALF_LIFE_S)
    if n == 0 or seen.mean <= 0:
        return guess, guess_error, _UNKNOWN_SD
    share = guess_n / (guess_n + n)
    ratio = share * guess + (1 - share) * seen.mean
    sd = max(seen.var**0.5 / seen.mean, _MIN_SD) if n >= 2 else _UNKNOWN_SD
    error = ((share * guess_error) ** 2 + sd**2 * n / (guess_n + n) ** 2) ** 0.5
    return ratio, error, sd
