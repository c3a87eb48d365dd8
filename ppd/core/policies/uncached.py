"""D-local below a number of uncached tokens: llm-d's prefix-based PD decider, and vllm-router's (256).

It looks at nothing else, so a short first turn is D-local too.
"""

from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import costs, guards
from ppd.core.table import Table


class Uncached:
    """`threshold`: tokens that D may lack at most, less one."""

    def __init__(self, threshold: int = 256) -> None:
        self.name = f"uncached:threshold={threshold}"
        self._threshold = threshold

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        local = costs.uncached(turn) < self._threshold
        return guards.forced(view) or Decision(Route.D_LOCAL if local else Route.P_D, Reason.POLICY)
