"""Where requests that share a beginning were placed lately: a preference for placement, not an identity.

A client says so by a key (OpenAI's `prompt_cache_key`), or by naming a conversation whose history is not
known. Engines that served the key may hold the beginning, so the next request prefers them. A key may be
constant for all of an application's traffic: after a few conversations in a row the preference is dropped and
ordinary placement chooses the next engine.
"""

from collections import OrderedDict
from typing import NamedTuple

MAX_KEYS = 10_000
MAX_IN_A_ROW = 4  # conversations of one key that prefer the same engine
QUIET_S = 60.0  # a pause after which the count begins anew


class Near(NamedTuple):
    """Preferred workers, by id; empty = none."""

    worker: str = ""  # that decodes
    prefill: str = ""


NOWHERE = Near()


class _Place(NamedTuple):
    near: Near
    in_a_row: int
    at_s: float


class Affinity:
    """Bounded: the key that was used least recently gives way. Time is passed in."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max = max_keys
        self._places: OrderedDict[str, _Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def knows(self, key: str) -> bool:
        return key in self._places

    def near(self, key: str, now_s: float) -> Near:
        """The workers that the next request of `key` prefers."""
        place = self._places.get(key)
        if place is None or (place.in_a_row >= MAX_IN_A_ROW and now_s - place.at_s < QUIET_S):
            return NOWHERE
        return place.near

    def placed(self, key: str, near: Near, begins: bool, now_s: float) -> None:
        """A request of `key` went to these workers. `begins`: it counts as one more conversation."""
        before = self._places.pop(key, None)
        in_a_row = int(begins)
        if before is not None and before.near.worker == near.worker and now_s - before.at_s < QUIET_S:
            in_a_row += before.in_a_row
        if before is not None and not near.prefill:
            near = near._replace(prefill=before.near.prefill)
        self._places[key] = _Place(near, in_a_row, now_s)
        if len(self._places) > self._max:
            self._places.popitem(last=False)
