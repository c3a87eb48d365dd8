"""The path with the smaller predicted TTFT: blind to what a local prefill does to other streams."""

from ppd.core import live
from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import costs, guards
from ppd.core.policies.ppd import verdict_for
from ppd.core.table import Table


class LeastTtft:
    """Predicts from the table, corrected by the queues of now; from the queues alone without a table."""

    name = "least_ttft"

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        early = guards.forced(view) or guards.first_or_uncached(turn)
        if early is not None:
            return early
        if table is None:
            found = costs.estimate(turn, view, table)
            local = found.d_local_ms < found.p_d_ms
            return Decision(Route.D_LOCAL if local else Route.P_D, Reason.POLICY)
        row = verdict_for(turn, table, weights).row
        expected = live.correct(turn, view, row, table) or row.expected
        local = expected[Route.D_LOCAL].ttft_ms < expected[Route.P_D].ttft_ms
        return Decision(Route.D_LOCAL if local else Route.P_D, Reason.POLICY, expected=expected)
