"""The offline phase in virtual time: a table measured on a simulated cluster, at x = 0 and x = 1."""

import random
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, pstdev

from ppd.core.cells import SHAPES, Context, Ratio
from ppd.core.names import Provenance, Role, Route
from ppd.core.records import CellRecord, Estimate, PathEstimate, TableSnapshot
from simulator.arrivals import poisson
from simulator.cluster import ClusterSpec, Job, SimCluster
from simulator.conversation import Conversation, TurnSpec
from simulator.fixed import FixedRouter

FIRST = {
    Context.SMALL: TurnSpec(128, 128),
    Context.LARGE: TurnSpec(1024, 1024),
    Context.HUGE: TurnSpec(7680, 512),
}
LEVELS = (1.0, 4.0, 12.0)
_POINT_S = 10.0
_WORST_S = 120.0  # of TTFT; a point that is worse is unstable, and its cell stays empty


def measure(
    spec: ClusterSpec,
    placement: str,
    levels: tuple[float, ...] = LEVELS,
    seed: int = 0,
    told: Callable[[int, int], None] = lambda _done, _of: None,
) -> TableSnapshot:
    """A table of 27 shapes at each of `levels`; `told` hears how far it is."""
    wanted = [(c, r, q) for c in Context for r in Ratio for q in levels]
    found = []
    for i, (context, ratio, qps) in enumerate(wanted):
        paths = {
            path.value: estimate
            for path in (Route.P_D, Route.D_LOCAL)
            if (estimate := _measure(spec, path, context, ratio, qps, seed)) is not None
        }
        if paths:
            found.append(CellRecord(context=context.value, ratio=ratio.value, qps=qps, paths=paths))
        told(i + 1, len(wanted))
    return TableSnapshot(
        model="m", placement=placement, version=1, hardware="simulated", source="offline", cells=found
    )


def _measure(
    spec: ClusterSpec, path: Route, context: Context, ratio: Ratio, qps: float, seed: int
) -> PathEstimate | None:
    rng = random.Random(f"{seed} {context} {ratio} {qps}")
    turns = (FIRST[context], TurnSpec(*SHAPES[ratio]))
    starts = list(poisson(rng, qps, _POINT_S)) or [0.0]
    chats = [Conversation(i, at_s, turns) for i, at_s in enumerate(starts)]
    local = frozenset(w.name for w in spec.workers if w.role is Role.DECODE and path is Route.D_LOCAL)
    jobs = SimCluster(replace(spec, client_limit=0), FixedRouter(local)).run(chats)
    second = [j for j in jobs if j.index == 1 and not j.failed]
    if len(second) < len(chats) or fmean(j.ttft_s for j in second) > _WORST_S:
        return None
    return PathEstimate(
        ttft_ms=_estimate([j.ttft_s for j in second]),
        tpot_ms=_estimate([j.tpot_s for j in second]),
        provenance=Provenance.SIMULATED,
    )


def _estimate(seconds: list[float]) -> Estimate:
    return Estimate(mean=1e3 * fmean(seconds), sd=1e3 * pstdev(seconds), n=float(len(seconds)))


def later(jobs: list[Job]) -> list[Job]:
    """The turns that a policy decides on."""
    return [j for j in jobs if j.index > 0]
