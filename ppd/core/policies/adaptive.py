"""Ours, the default: the table that the planner keeps learning, corrected by the queues of now.

What was learned arrives as table versions. Here it meets the present (`ppd.core.live`), the class's limits,
the pull-back path, and a small bounded share of exploration that keeps the path not taken measured.
"""

from ppd.core import live
from ppd.core.decision import Decision, Expected, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import guards
from ppd.core.policies.choose import best
from ppd.core.policies.ppd import NO_TABLE, verdict_for
from ppd.core.score import near_limit, score
from ppd.core.table import Table

EXPLORE = 0.01
MAX_EXPLORE = 0.1
_TWO = (Route.P_D, Route.D_LOCAL)
_ALL = (*_TWO, Route.P_D_PULLBACK)


class Adaptive:
    """`explore`: the share of turns that go against the verdict; `correction`: whether load reports count;
    `first`: whether turns of which D holds nothing are decided too, by the queues of now (default: they go
    P->D).

    A table may ask for another share of exploration (after drift, for a while); 0 here switches it off for
    good. Raises ValueError for a share outside 0..0.1.
    """

    name = "adaptive"

    def __init__(self, explore: float = EXPLORE, correction: bool = True, first: bool = False) -> None:
        if not 0 <= explore <= MAX_EXPLORE:
            raise ValueError(f"the share of exploration is between 0 and {MAX_EXPLORE}, not {explore}")
        self._explore = explore
        self._correction = correction
        self._first = first

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        early = guards.forced(view)
        if early is not None:
            return early
        uncached = guards.first_or_uncached(turn)
        if uncached is not None and (table is None or not self._first):
            return uncached
        if table is None:
            return NO_TABLE
        if uncached is None:
            evicted = guards.likely_evicted(turn, view, table)
            if evicted is not None:
                return evicted
        verdict = verdict_for(turn, table, weights)
        row, expected = verdict.row, verdict.row.expected
        reason = Reason.TABLE if row.exact else Reason.TABLE_NEAREST
        if self._correction:
            corrected = live.correct(turn, view, row, table)
            if corrected is None and uncached is not None:
                return uncached  # no cell was measured without a cache
            expected, reason = (corrected, Reason.TABLE_LIVE) if corrected else (expected, Reason.LIVE_STALE)
        path = best(expected, _candidates(expected, view), weights)
        if turn.draw < self._share(table) and not _limits_at_risk(expected, weights):
            path, reason = Route.P_D if path is Route.D_LOCAL else Route.D_LOCAL, Reason.EXPLORE
        if path is Route.P_D and view.pullback and Route.P_D_PULLBACK not in expected:
            path = Route.P_D_PULLBACK  # switched on and not measured: it is how P->D is done
        s = score(expected[Route.P_D], expected[Route.D_LOCAL], weights.ttft, weights.tpot)
        return Decision(path, reason, s, verdict.cell, row.text, table.version, expected)

    def _share(self, table: Table) -> float:
        asked = table.explore_share
        return min(asked, MAX_EXPLORE) if asked >= 0 and self._explore else self._explore


def _candidates(expected: dict[Route, Expected], view: View) -> tuple[Route, ...]:
    return _ALL if view.pullback and Route.P_D_PULLBACK in expected else _TWO


def _limits_at_risk(expected: dict[Route, Expected], weights: Weights) -> bool:
    """Whether one of the two paths comes near a limit of the class: then nothing is tried out on it."""
    return near_limit(expected[Route.P_D], weights) or near_limit(expected[Route.D_LOCAL], weights)
