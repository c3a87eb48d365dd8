"""ConServe (arXiv:2606.01839): place the conversation, not the turn; after the first one always D-local."""

from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import guards
from ppd.core.table import Table


class ConServe:
    name = "conserve"

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        """Also where D lost its cache: the conversation stays where it was placed."""
        first = Decision(Route.P_D, Reason.FIRST_TURN)
        return guards.forced(view) or (first if turn.turn <= 1 else Decision(Route.D_LOCAL, Reason.POLICY))
