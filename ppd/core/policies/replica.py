"""Every turn goes to a worker that does both, where there is one: a cluster that is not disaggregated."""

from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import guards
from ppd.core.table import Table


class Replica:
    name = "replica"

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        if view.replica is not None:
            return Decision(Route.REPLICA, Reason.POLICY)
        return guards.forced(view) or Decision(Route.P_D, Reason.POLICY)
