"""The PPD table alone: Algorithm 1 of arXiv:2603.13358."""

from ppd.core import cells
from ppd.core.decision import Decision, Turn, View, Weights
from ppd.core.names import Reason, Route
from ppd.core.policies import guards
from ppd.core.score import misses
from ppd.core.table import Table, Verdict

# Without a table: an append-prefill of a cached conversation is right in 178 of 180 cells of the paper's
# own measurements (2P2D, weights 1 and 1), so D-local is the better guess.
NO_TABLE = Decision(Route.D_LOCAL, Reason.NO_TABLE)


class PpdTable:
    """Turn 1, or nothing cached: P->D. Else the verdict of the nearest measured cell, within the limits."""

    name = "ppd"

    def decide(self, turn: Turn, view: View, table: Table | None, weights: Weights) -> Decision:
        early = guards.forced(view) or guards.first_or_uncached(turn)
        if early is not None:
            return early
        if table is None:
            return NO_TABLE
        verdict = verdict_for(turn, table, weights)
        row = verdict.row
        path = _within_limits(verdict, weights)
        return Decision(
            path,
            Reason.TABLE if row.exact else Reason.TABLE_NEAREST,
            verdict.score,
            verdict.cell,
            row.text,
            table.version,
            row.expected,
        )


def verdict_for(turn: Turn, table: Table, weights: Weights) -> Verdict:
    slot = cells.cell_slot(turn.n_ctx, turn.n_in, turn.n_out, turn.qps)
    return table.verdicts(weights.ttft, weights.tpot)[slot]


def _within_limits(verdict: Verdict, weights: Weights) -> Route:
    """The verdict's path, unless it breaks a limit of the class that the other one keeps."""
    row = verdict.row
    local_misses, remote_misses = misses(row.d_local, weights), misses(row.p_d, weights)
    if local_misses == remote_misses:
        return verdict.path
    return Route.P_D if local_misses else Route.D_LOCAL
