"""What moving KV costs between each P and D, learned from the engines' own reports."""

from collections import OrderedDict

from ppd.core.learning.link import UNKNOWN, LinkCost, LinkFit
from ppd.core.records import KvMoved

_MAX_PAIRS = 1024


class _Pair:
    __slots__ = ("cost", "fit")

    def __init__(self) -> None:
        self.fit = LinkFit()
        self.cost = UNKNOWN


class Links:
    """By pair of workers; in memory, bounded: the pair that was silent longest gives way."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()

    def observe(self, moved: KvMoved, ranks: int) -> None:
        """One rank's transfer; all `ranks` of the engine that pulls move their shares at the same time."""
        if moved.error or not moved.source_worker_id:
            return
        key = (moved.source_worker_id, moved.worker_id)
        pair = self._pairs.pop(key, None) or _Pair()
        self._pairs[key] = pair
        if len(self._pairs) > _MAX_PAIRS:
            self._pairs.popitem(last=False)
        pair.fit.observe(moved.bytes * ranks, moved.transfer_s)
        pair.cost = pair.fit.cost()

    def cost(self, source: str, destination: str) -> LinkCost:
        """Unknown where this pair moved too little yet."""
        pair = self._pairs.get((source, destination))
        return pair.cost if pair is not None else UNKNOWN

    def __len__(self) -> int:
        return len(self._pairs)
