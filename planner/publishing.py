"""When what was learned becomes a new version of the table."""

import logging
import time
from math import log

import msgspec

from planner.learners import Held
from planner.metrics import FLIPS
from planner.tables import ConflictError, Tables
from ppd.core.learning.proposal import Proposal, propose
from ppd.core.records import TableSnapshot
from ppd.core.score import slo_classes
from ppd.core.table import Table

MAX_EXPLORE = 0.02
_SHIFT = log(1.15)  # figures that moved by less are not news
_REFRESH_S = 120.0  # moved figures without a changed verdict are published so often at most
_NAMED = 3  # verdicts that the source names


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
        """Twice the usual share for a while after drift, within the bound."""
        drifting = held is not None and held.learner is not None and held.learner.learned.drifting
        return min(2 * self._explore, MAX_EXPLORE) if drifting else self._explore

    async def consider(self, key: str, held: Held) -> None:
        """Publish a new version if there is reason to; a frozen table stays as it is."""
        now_s = time.monotonic()
        current = self._tables.known.get(key)
        if current is None or current.frozen or held.learner is None or not held.fresh:
            return
        if now_s - self._considered_s.get(key, -self._every_s) < self._every_s:
            return
        self._considered_s[key], held.fresh = now_s, False
        proposal = propose(held.learner, Table(current), slo_classes(current.weights))
        share = self.explore_share(held)
        stale = now_s - self._published_s.get(key, -_REFRESH_S) >= _REFRESH_S
        if not (proposal.flips or share != current.explore_share or (stale and proposal.shift > _SHIFT)):
            return

        def edit(latest: TableSnapshot) -> TableSnapshot:
            if latest.version != current.version:
                raise ConflictError(f"{key} has changed since it was looked at")
            return msgspec.structs.replace(
                latest, cells=proposal.cells, source=_source(proposal), explore_share=share
            )

        try:
            await self._tables.change(key, edit)
        except ConflictError as error:
            self._log.info("not published: %s", error)
            return
        self._published_s[key] = now_s
        FLIPS.labels(key).inc(len(proposal.flips))


def _source(proposal: Proposal) -> str:
    if not proposal.flips:
        return "online: figures brought up to date"
    named = ", ".join(proposal.flips[:_NAMED])
    more = f" and {len(proposal.flips) - _NAMED} more" if len(proposal.flips) > _NAMED else ""
    return f"online: {named}{more} changed"
