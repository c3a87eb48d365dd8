"""AMPD (arXiv:2602.14516): P when it is idle, else D when its decodes can bear it, else the cheaper one."""

from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import costs, guards
from ppd.core.table import Table


class Ampd:
    """`itl_slo_ms`: the inter-token latency that D may reach, where the SLO class sets no TPOT limit.

    D has slack while its inter-token latency, with this prefill spread over the turn's answer, keeps to that.
    With no slack the cost of D-local holds the pause of its batch too: the prefill's time, once for each
    running request beyond the first, shared by all of them.
    """

    name = "ampd"

    def __init__(self, itl_slo_ms: float = 50.0) -> None:
        self._itl_slo_ms = itl_slo_ms

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        early = guards.forced(view) or guards.first_or_uncached(turn)
        if early is not None:
            return early
        if view.prefill is not None and view.prefill.queued_prefill_tokens == 0:
            return Decision(Route.P_D, Reason.POLICY)
        found = costs.estimate(turn, view, table)
        d = view.decode
        if d is None or not d.running:
            return Decision(Route.D_LOCAL, Reason.POLICY)
        slo = weights.tpot_limit_ms or self._itl_slo_ms
        if d.itl_ms + found.d_compute_ms / max(1, turn.n_out) <= slo:
            return Decision(Route.D_LOCAL, Reason.POLICY)
        pause_ms = found.d_compute_ms * (d.running - 1) / d.running
        local = found.d_local_ms + pause_ms < found.p_d_ms
        return Decision(Route.D_LOCAL if local else Route.P_D, Reason.POLICY)
