"""Publishes what was learned, when there is reason to."""

import logging
import time

from planner.learners import Held
from planner.metrics import FLIPS, show_learned
from planner.tables import ConflictError, Tables
from ppd.core.learning.publication import REFRESH_S, explore_share, improved
from ppd.core.records import TableSnapshot
from ppd.runtime.streams import TooLargeError


class Publisher:
    """Considers each table at most every `every_s`; `explore` is the usual share of exploration."""

    def __init__(self, tables: Tables, explore: float, every_s: float, logger: logging.Logger) -> None:
        self._tables = tables
        self._explore = explore
        self._every_s = every_s
        self._log = logger
        self._considered_s: dict[str, float] = {}
        self._published_s: dict[str, float] = {}

    def explore_share(self, held: Held | None) -> float:
        learner = held.learner if held else None
        return explore_share(self._explore, learner.learned if learner else None)

    async def consider(self, key: str, held: Held) -> None:
        """Publish a new version if there is reason to."""
        now_s = time.monotonic()
        current = self._tables.known.get(key)
        if current is None or held.learner is None or not held.fresh:
            return
        if now_s - self._considered_s.get(key, -self._every_s) < self._every_s:
            return
        self._considered_s[key], held.fresh = now_s, False
        show_learned(key, held.learner.learned)
        better = improved(
            held.learner, current, self._explore, now_s - self._published_s.get(key, -REFRESH_S)
        )
        if better is None:
            return

        def edit(latest: TableSnapshot) -> TableSnapshot:
            if latest.version != current.version:
                raise ConflictError(f"{key} has changed since it was looked at")
            return better.snapshot

        try:
            await self._tables.change(key, edit)
        except ConflictError as error:
            self._log.info("not published: %s", error)
            return
        except TooLargeError:  # logged, and shown in `status`
            return
        self._published_s[key] = now_s
        FLIPS.labels(key).inc(len(better.flips))
