"""A fixed share of turns is D-local: x = 0, 1 and between, as in arXiv:2603.13358.

There the share is that of decode workers which append-prefill; here each turn is drawn, which comes to the
same on average.
"""

from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import guards
from ppd.core.table import Table


class Static:
    """`x`: the share of later turns that is D-local, 0..1. Raises ValueError for any other."""

    def __init__(self, x: float = 1.0) -> None:
        if not 0 <= x <= 1:
            raise ValueError(f"x is a share between 0 and 1, not {x}")
        self.name = f"static:x={x:g}"
        self._x = x

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        early = guards.forced(view) or guards.first_or_uncached(turn)
        if early is not None:
            return early
        local = self._x >= 1 or turn.draw < self._x
        return Decision(Route.D_LOCAL if local else Route.P_D, Reason.POLICY)
