"""What a KV transfer costs: a time that every one has, and one for each byte, as past ones tell.

    seconds = setup + bytes / bandwidth

a line by least squares that forgets. Where all transfers were alike in size nothing tells the two parts
apart: then all of the time counts as that of the bytes. What a first handshake costs is in none of them: the
connector reports it apart (`KvMoved.wait_s`).
"""

from collections import OrderedDict

import msgspec

from ppd.core.learning.regression import Regression

_KEEP = 0.99  # of a hundred transfers
_ENOUGH = 4  # transfers, before any of it is believed
_MB = 1e6  # a unit that keeps the moments near 1
_LEAST_BYTES = 1024  # a transfer of less tells of no link
_LEAST_S = 1e-6  # less is no transfer's
_MAX_S = 600.0  # longer than any lease
_MAX_BYTES = 1 << 43
_MAX_BYTES_PER_S = 1e13  # no link is faster
MAX_PAIRS = 1024


class LinkCost(msgspec.Struct, frozen=True):
    """0 = not known."""

    bytes_per_s: float = 0.0
    setup_ms: float = 0.0


UNKNOWN = LinkCost()


class LinkFit(msgspec.Struct):
    """One link's, or that of many that are alike. Plain data, to be saved and loaded."""

    fit: Regression = msgspec.field(default_factory=lambda: Regression.empty(2))

    def observe(self, size_bytes: int, seconds: float) -> None:
        """Take in a transfer that went well; a figure that no link makes is passed over."""
        if _LEAST_BYTES <= size_bytes <= _MAX_BYTES and _LEAST_S <= seconds <= _MAX_S:
            self.fit.observe((1.0, size_bytes / _MB), seconds, _KEEP)

    def cost(self) -> LinkCost:
        """Unknown until a few transfers were seen."""
        if self.fit.n < _ENOUGH:
            return UNKNOWN
        mean_s, mean_mb = self.fit.targets[0] / self.fit.n, self.fit.moments[0][1] / self.fit.n
        whole = mean_s / mean_mb
        setup_s, s_per_mb = self.fit.solve((0.0, whole))
        if setup_s <= 0 or s_per_mb <= 0:
            setup_s, s_per_mb = 0.0, whole
        return LinkCost(min(_MB / s_per_mb, _MAX_BYTES_PER_S), 1e3 * setup_s)


class PairLinks:
    """Each pair of workers' own; bounded: the pair that was silent longest gives way."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], tuple[LinkFit, LinkCost]] = OrderedDict()

    def observe(self, source: str, destination: str, size_bytes: int, seconds: float) -> None:
        key = (source, destination)
        fit = self._pairs.pop(key, (LinkFit(),))[0]
        fit.observe(size_bytes, seconds)
        self._pairs[key] = fit, fit.cost()
        if len(self._pairs) > MAX_PAIRS:
            self._pairs.popitem(last=False)

    def cost(self, source: str, destination: str) -> LinkCost:
        """Unknown where this pair moved too little yet."""
        return self._pairs.get((source, destination), (None, UNKNOWN))[1]

    def __len__(self) -> int:
        return len(self._pairs)
