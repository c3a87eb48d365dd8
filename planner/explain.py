"""What would happen to a given turn, and why: the policy's own decision, and what the figures rest on."""

from typing import Any

import msgspec

from planner.requests import ExplainRequest
from ppd.core import cells, policies
from ppd.core.decision import Turn, View
from ppd.core.learning.learner import Learner
from ppd.core.learning.proposal import costs
from ppd.core.learning.survival import TREAT_AS_CACHED, probability
from ppd.core.score import slo_classes
from ppd.core.table import Table


def explain(
    request: ExplainRequest, table: Table, learner: Learner | None, last_policy: str = ""
) -> dict[str, Any]:
    """Plain data, by the policy of the request, else by that of the newest turn, else by the default one.

    Raises ValueError for an SLO class that the table does not know, or an unknown policy.
    """
    classes = slo_classes(table.snapshot)
    if request.slo_class not in classes:
        raise ValueError(f"there is no SLO class {request.slo_class!r}; there are {', '.join(classes)}")
    weights = classes[request.slo_class]
    cell = cells.cell_of(request.n_ctx, request.n_in, request.n_out, request.qps)
    policy = request.policy or last_policy or policies.DEFAULT
    decision = policies.make(policy).decide(
        _turn(request), View(prefill=request.prefill, decode=request.decode), table, weights
    )
    row = table.lookup(cell.slot)
    return {
        "policy": policy,
        "policy_known_from": "request" if request.policy else "turns" if last_policy else "default",
        "path": decision.path,
        "reason": decision.reason,
        "score": decision.score,
        "expected": decision.expected,
        "cell": str(cell),
        "decided_by_cell": row.text,
        "table_version": table.version,
        "table_source": table.snapshot.source,
        "slo_class": request.slo_class,
        "weights": msgspec.structs.asdict(weights),
        "measured": row.record.paths,
        "learned": _learned(learner, cell, row.expected, request) if learner else None,
    }


def _turn(request: ExplainRequest) -> Turn:
    return Turn(
        turn=request.turn,
        n_in=request.n_in,
        n_out=request.n_out,
        n_ctx=request.n_ctx,
        qps=request.qps,
        d_cached=request.n_ctx if request.d_cached is None else request.d_cached,
        p_cached=request.p_cached,
        local_streak=request.local_streak,
        idle_s=request.idle_s,
    )


def _learned(learner: Learner, cell: cells.Cell, known: Any, request: ExplainRequest) -> dict[str, Any]:
    """What the online loop believes now, which may not be published yet."""
    survives = probability(learner.learned.survival.grid(), request.idle_s, request.decode.kv_use)
    return {
        "paths": {
            path: {
                "ttft_ms": cost.expected.ttft_ms,
                "ttft_error": cost.ttft.error,
                "tpot_ms": cost.expected.tpot_ms,
                "tpot_error": cost.tpot.error,
                "turns": cost.ttft.n,
            }
            for path, cost in costs(learner, cell, known).items()
        },
        "survival": survives,
        "treated_as_cached": survives >= TREAT_AS_CACHED,
    }
