"""Pairs of a P and a D between which KV transfers fail: set aside, and tried again with back-off.

Both engines may be healthy and serve other pairs: a broken link, a firewall or a NIC can be the cause.
"""

from collections import OrderedDict
from math import inf

_FIRST_S = 5.0
_LONGEST_S = 300.0
_FORGIVEN_S = 60.0  # without a failure, and as long as the last rest: the next one is the first again
_MAX_PAIRS = 4096


class Pairs:
    """Failed pairs, by the ids of P and D. The caller passes the time."""

    def __init__(self) -> None:
        self._failed: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()  # until, back-off: s

    def failed(self, prefill_id: str, decode_id: str, now_s: float) -> float:
        """Note a failed transfer. Returns for how many seconds the pair is set aside; 0 where it was
        already.
        """
        until_s, backoff_s = self._failed.pop((prefill_id, decode_id), (-inf, 0.0))
        fresh = now_s >= until_s  # otherwise it was already running at the first failure
        if fresh:
            in_a_row = now_s < until_s + max(backoff_s, _FORGIVEN_S)
            backoff_s = min(backoff_s * 2, _LONGEST_S) if in_a_row else _FIRST_S
            until_s = now_s + backoff_s
        self._failed[prefill_id, decode_id] = (until_s, backoff_s)
        if len(self._failed) > _MAX_PAIRS:
            self._failed.popitem(last=False)
        return backoff_s if fresh else 0.0

    def usable(self, prefill_id: str, decode_id: str, now_s: float) -> bool:
        if not self._failed:
            return True
        known = self._failed.get((prefill_id, decode_id))
        return known is None or now_s >= known[0]
