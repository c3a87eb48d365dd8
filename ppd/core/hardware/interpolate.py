"""Piecewise linear tables: exact at their nodes, continued along the last segment beyond them."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise


class Line:
    """A function of one variable through `(x, y)` nodes."""

    __slots__ = ("_slopes", "_xs", "_ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Raises ValueError unless there are at least two nodes and `xs` rises strictly."""
        if len(xs) != len(ys) or len(xs) < 2 or any(b <= a for a, b in pairwise(xs)):
            raise ValueError("a table needs two nodes or more, with x rising strictly")
        self._xs = list(xs)
        self._ys = list(ys)
        self._slopes = [
            (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i])  # one per segment
            for i in range(len(xs) - 1)
        ]

    def __call__(self, x: float) -> float:
        i = min(max(bisect_right(self._xs, x) - 1, 0), len(self._slopes) - 1)
        return self._ys[i] + self._slopes[i] * (x - self._xs[i])


class Surface:
    """A function of two variables, linear in each between the nodes: `rows[i][j]` is at (xs[i], ys[j])."""

    __slots__ = ("_rows", "_xs")

    def __init__(self, xs: Sequence[float], ys: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
        """Raises ValueError where the grid does not fit its axes."""
        if len(xs) != len(rows) or len(xs) < 2:
            raise ValueError("a grid needs one row for each of two nodes or more")
        self._xs = list(xs)
        self._rows = [Line(ys, row) for row in rows]

    def __call__(self, x: float, y: float) -> float:
        i = min(max(bisect_right(self._xs, x) - 1, 0), len(self._xs) - 2)
        low, high = self._rows[i](y), self._rows[i + 1](y)
        return low + (high - low) * (x - self._xs[i]) / (self._xs[i + 1] - self._xs[i])
