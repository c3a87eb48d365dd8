"""Counts of each turn, gathered as plain numbers and handed to Prometheus' metrics now and then.

prometheus_client takes a lock for each count, and walks the buckets of each histogram. With a dozen counts a
turn that is more work than deciding the path. The metrics end up the same.
"""

from bisect import bisect_left
from functools import cache
from typing import Any

from prometheus_client import Counter, Histogram


class Distribution(Histogram):
    """A histogram that takes many observations at once."""

    @property
    def bounds(self) -> list[float]:
        """The upper bounds of its buckets, the last one infinite."""
        return list(self._upper_bounds)

    def gather(self, counts: list[int], total: float) -> None:
        """Add a number of observations to each bucket, and their sum."""
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


class CounterTally:
    """One counter's increments."""

    __slots__ = ("_child", "_n")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self._n: float = 0

    def add(self, n: float = 1) -> None:
        self._n += n

    def hand_over(self) -> None:
        n, self._n = self._n, 0
        if n:
            self._child.inc(n)


class DistributionTally:
    """One histogram's observations."""

    __slots__ = ("_bounds", "_child", "_counts", "_seen", "_sum")

    def __init__(self, child: Distribution, bounds: list[float]) -> None:
        self._child = child
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0
        self._seen = False

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self._seen = True

    def hand_over(self) -> None:
        if self._seen:
            self._child.gather(self._counts, self._sum)
            self._counts, self._sum, self._seen = [0] * len(self._bounds), 0.0, False


_all: list[CounterTally | DistributionTally] = []


def _child(metric: Any, labels: tuple[str, ...]) -> Any:
    return metric.labels(*labels) if labels else metric


@cache  # labels are bounded
def counter(metric: Counter, *labels: str) -> CounterTally:
    """The tally of a counter under these labels."""
    made = CounterTally(_child(metric, labels))
    _all.append(made)
    return made


@cache
def distribution(metric: Distribution, *labels: str) -> DistributionTally:
    """The tally of a histogram under these labels."""
    made = DistributionTally(_child(metric, labels), metric.bounds)
    _all.append(made)
    return made


def hand_over() -> None:
    """Everything that was gathered until now."""
    for tally in _all:
        tally.hand_over()
