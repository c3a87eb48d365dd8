"""The planner's online loop in virtual time: the same learner and proposal, published by the same rule."""

from math import log

import msgspec

from ppd.core.learning.learner import Learner
from ppd.core.learning.proposal import propose
from ppd.core.records import TableSnapshot, TurnRecord, WorkerLoad
from ppd.core.score import slo_classes
from ppd.core.table import Table

_EVERY_S = 10.0
_SHIFT = log(1.15)
_REFRESH_S = 120.0
_MAX_EXPLORE = 0.02


class Online:
    """Turns and load reports in; `table` is what frontends decide by."""

    def __init__(self, seed: TableSnapshot, explore: float = 0.01) -> None:
        self._explore = explore
        self.table = Table(msgspec.structs.replace(seed, explore_share=explore))
        self.learner = Learner(self.table)
        self.published = 0
        self._considered_s = 0.0
        self._published_s = 0.0
        self._fresh = False

    def turn(self, record: TurnRecord, now_s: float) -> None:
        self.learner.observe(record, now_s)
        self._fresh = True

    def load(self, load: WorkerLoad, now_s: float) -> None:
        self.learner.observe_load(load, now_s)

    def tick(self, now_s: float) -> None:
        """Publish a new version if there is reason to."""
        if not self._fresh or now_s - self._considered_s < _EVERY_S:
            return
        self._considered_s, self._fresh = now_s, False
        current = self.table.snapshot
        proposal = propose(self.learner, self.table, slo_classes(current.weights))
        share = min(2 * self._explore, _MAX_EXPLORE) if self.learner.learned.drifting else self._explore
        stale = now_s - self._published_s >= _REFRESH_S
        if not (proposal.flips or share != current.explore_share or (stale and proposal.shift > _SHIFT)):
            return
        self.table = Table(
            msgspec.structs.replace(
                current,
                version=current.version + 1,
                cells=proposal.cells,
                source="online",
                explore_share=share,
            )
        )
        self.published += 1
        self._published_s = now_s
