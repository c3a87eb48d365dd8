"""Kairos (arXiv:2607.02043): D-local where chunks fit between decode steps and the first token is soon.

Each step of D has room for as many prompt tokens as its time between tokens leaves below the limit. The
chunks that the turn needs, one a step, give D's TTFT; it may be at most alpha times that of P.
"""

from math import ceil

from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import costs, guards
from ppd.core.table import Table


class Kairos:
    """`tbt_slo_ms`: the time between tokens to keep, where the SLO class sets no TPOT limit."""

    name = "kairos"

    def __init__(self, alpha: float = 1.0, tbt_slo_ms: float = 50.0) -> None:
        self._alpha = alpha
        self._tbt_slo_ms = tbt_slo_ms

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        early = guards.forced(view) or guards.first_or_uncached(turn)
        if early is not None:
            return early
        found = costs.estimate(turn, view, table)
        slo = weights.tpot_limit_ms or self._tbt_slo_ms
        step_ms = view.decode.itl_ms if view.decode else 0.0
        room_tokens = int((slo - step_ms) / found.d_ms_per_token)
        if room_tokens < 1:
            return Decision(Route.P_D, Reason.POLICY)
        steps = ceil(costs.uncached(turn) / room_tokens)
        ttft_d_ms = found.d_queue_ms + found.d_compute_ms + steps * step_ms
        local = ttft_d_ms <= self._alpha * (found.p_d_ms + step_ms)
        return Decision(Route.D_LOCAL if local else Route.P_D, Reason.POLICY)
