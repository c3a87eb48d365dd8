"""One policy under one condition with one seed, and what it came to."""

from dataclasses import dataclass
from math import inf
from statistics import fmean

from bench.policies_conditions import Condition
from ppd.core import policies
from ppd.core.names import Reason, Route
from ppd.core.records import TableSnapshot
from ppd.core.score import Weights
from ppd.core.table import Table
from simulator.cluster import ClusterSpec, Job, SimCluster
from simulator.fleet import fleet
from simulator.online import Online
from simulator.router import PolicyRouter

OURS = policies.DEFAULT
POLICIES = (
    "static:x=0",
    "static:x=0.33",
    "static:x=0.5",
    "static:x=0.67",
    "static:x=1",
    "replica",
    "ppd",
    "uncached:threshold=256",
    "isl_bounding",
    "prefill_load",
    "isl_or_load",
    "ampd",
    "kairos",
    "conserve",
    "least_ttft",
    OURS,
)
_WARM_UP = 0.2  # of the time: not counted
_DRAIN_S = 60.0  # after the last arrival
SETTLED_TURNS = 2000  # after a drift: from there on a policy has to have found its way


@dataclass(frozen=True, slots=True)
class Outcome:
    """Turns after the first, of the counted part."""

    condition: str
    policy: str
    seed: int
    turns: int
    ttft_ms: float
    tpot_ms: float
    goodput: float  # share of turns within both limits
    goodput_late: float  # the same from the 2,000th turn after a drift on, or in the last quarter
    turns_late: int
    kv_gb: float
    local: float
    explored: float
    versions: int
    drifts: bool = False


def simulate(
    condition: Condition, policy: str, seed: int, duration_s: float, table: TableSnapshot | None
) -> Outcome:
    """`duration_s` of arrivals, or twice that where something drifts. Fixed policies need no table."""
    duration_s *= 2 if condition.drifts else 1
    spec = condition.spec
    if policy == "replica":
        spec = _replicas(condition)
    online = Online(table) if policy == OURS and table is not None else None
    weights = Weights(ttft_limit_ms=condition.ttft_ms, tpot_limit_ms=condition.tpot_ms)
    router = PolicyRouter(
        policies.make(policy),
        Table(table) if table else None,
        weights,
        condition.placement,
        online,
        seed=seed,
    )
    cluster = SimCluster(spec, router)
    drift = condition.drift
    if drift is not None and policy != "replica":
        cluster.at(duration_s / 2, lambda _: drift(cluster))
    cluster.stop_s = duration_s + _DRAIN_S
    jobs = cluster.run(condition.traffic(seed, duration_s))
    return _outcome(condition, policy, seed, jobs, cluster, duration_s, online)


def _replicas(condition: Condition) -> ClusterSpec:
    """As many replicas of the same GPUs."""
    workers = condition.spec.workers
    names = [worker.profile.name for worker in workers]
    return fleet(
        f"{len(workers)}R", names, kv_capacity_tokens=min(w.config.kv_capacity_tokens for w in workers)
    )


def _outcome(
    condition: Condition,
    policy: str,
    seed: int,
    jobs: list[Job],
    cluster: SimCluster,
    duration_s: float,
    online: Online | None,
) -> Outcome:
    done = [j for j in jobs if j.index > 0 and _WARM_UP * duration_s <= j.asked_s <= duration_s]
    lost = [j for j in cluster.open_jobs() if j.index > 0 and j.asked_s <= duration_s]
    late = _late([*done, *lost], condition.drifts, duration_s)

    def good(job: Job) -> bool:
        in_time = job.end_s > 0 and 1e3 * job.ttft_s <= condition.ttft_ms
        return in_time and not job.failed and 1e3 * job.tpot_s <= condition.tpot_ms

    local = [j for j in done if j.route is not None and j.route.path is Route.D_LOCAL]
    explored = [j for j in done if j.route is not None and j.route.reason is Reason.EXPLORE]
    n = max(1, len(done))
    return Outcome(
        condition.name,
        policy,
        seed,
        len(done),
        1e3 * fmean(j.ttft_s for j in done) if done else inf,
        1e3 * fmean(j.tpot_s for j in done) if done else inf,
        sum(map(good, done)) / max(1, len(done) + len(lost)),
        sum(map(good, late)) / max(1, len(late)),
        len(late),
        sum(j.kv_bytes for j in jobs) / 1e9,
        len(local) / n,
        len(explored) / n,
        online.published if online else 0,
        condition.drifts,
    )


def _late(jobs: list[Job], drifts: bool, duration_s: float) -> list[Job]:
    if not drifts:
        return [j for j in jobs if j.asked_s > 0.75 * duration_s]
    after = sorted((j for j in jobs if j.asked_s > duration_s / 2), key=lambda j: j.asked_s)
    return after[SETTLED_TURNS:]
