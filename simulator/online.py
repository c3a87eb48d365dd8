"""The planner's online loop in virtual time: the same learner, published by the same rule."""

import msgspec

from ppd.core.learning.learner import Learner
from ppd.core.learning.publication import EVERY_S, EXPLORE, improved
from ppd.core.records import TableSnapshot, TurnRecord, WorkerLoad
from ppd.core.table import Table


class Online:
    """Turns and load reports in; `table` is what frontends decide by."""

    def __init__(self, seed: TableSnapshot, explore: float = EXPLORE) -> None:
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
        if not self._fresh or now_s - self._considered_s < EVERY_S:
            return
        self._considered_s, self._fresh = now_s, False
        better = improved(self.learner, self.table.snapshot, self._explore, now_s - self._published_s)
        if better is None:
            return
        self.table = Table(better.snapshot)
        self.published += 1
        self._published_s = now_s
