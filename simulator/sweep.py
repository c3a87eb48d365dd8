"""The paper's 3,060 points: 17 placements of four H100s, 18 workloads, 10 rates."""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from ppd.core.cells import QPS_LEVELS, SHAPES, Ratio
from ppd.core.engine import EngineConfig, Link
from ppd.core.hardware import load_profile
from ppd.core.names import Role
from ppd.core.seeds.sweep import Key, Point
from simulator import parallel
from simulator.arrivals import poisson
from simulator.cluster import ClusterSpec, Job, SimCluster, WorkerSpec
from simulator.conversation import Conversation, TurnSpec
from simulator.released import ReleasedRouter

POINT_S = 10.0  # arrivals of one point
FIRST_TURN = {"small": TurnSpec(128, 128), "large": TurnSpec(1024, 1024)}
WORKLOADS = tuple(f"{size}_{shape}" for size in FIRST_TURN for shape in SHAPES)
CONFIGS = (
    *("4R", "1P_3D", "2P_2D", "3P_1D", "1P_3pD", "2P_2pD", "3P_1pD", "1P_2D_1pD", "1P_1D_2pD", "2P_1D_1pD"),
    *("1R_1P_2D", "1R_1P_1D_1pD", "1R_1P_2pD", "1R_2P_1D", "1R_2P_1pD", "2R_1P_1D", "2R_1P_1pD"),
)
_FIGURES = Point.__struct_fields__[3:]
_PART = re.compile(r"(\d+)(R|P|D|pD)")


GRAPH_TOKENS = 512  # the largest step that vLLM captures a CUDA graph for


class Constants(msgspec.Struct, frozen=True):
    """What the authors' system cost beside its kernels: few numbers, the same at every point, in ms.

    Fitted by `simulator.calibrate` on a part of the sweep.
    """

    request_ms: float = 19.55  # HTTP, proxy and tokenizer, of each request
    crowd_ms: float = 0.3178  # and for each sequence that its engine runs, since one server relays them all
    step_ms: float = 1.51  # scheduling one step
    seq_ms: float = 0.036  # a sequence in a step
    prefill_ms: float = 0.71  # a step with prefill leaves the full CUDA graph
    prefill_scale: float = 1.651  # what prefill adds to a step, by the kernel tables' figure
    eager_ms: float = 9.0  # a step of more than 512 tokens leaves CUDA graphs altogether
    eager_send_ms: float = 50.0  # and takes at least this where it sends: launching and sending take turns
    send_ms: float = 27.36  # P sends before it goes on to its next step
    send_more_ms: float = 10.0  # and longer, for each prompt that the same step sends besides
    push_ms: float = 15.93  # of that, D's port is taken
    receive_ms: float = 6.339  # what comes in holds up the step of D that takes it over
    handoff_ms: float = 13.21  # the second leg, D's
    link_gb_s: float = 100.0
    kept_tokens: float = 288.5  # of an answer, the same again when it comes back as text (mean)
    lost: float = 0.2553  # of conversations that the proxy does not know again (`simulator.released`)
    slow_prefill: float = 3.0  # factor by which the first replica computes more slowly
    slow_seq_ms: float = 0.287  # and what a sequence adds to its steps


def keys() -> list[Key]:
    return [(c, w, q) for c in CONFIGS for w in WORKLOADS for q in QPS_LEVELS]


def parse_config(text: str) -> list[tuple[str, Role]]:
    """`1R_1P_2pD` as names and roles; a name that begins with `pD` append-prefills."""
    roles = {"R": Role.REPLICA, "P": Role.PREFILL, "D": Role.DECODE, "pD": Role.DECODE}
    found = []
    for part in text.split("_"):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is no placement of the sweep")
        found += [(f"{match[2]}{i}", roles[match[2]]) for i in range(int(match[1]))]
    return found


def cluster_spec(
    config: str, constants: Constants, profile_name: str = "h100-llama-3.1-8b", client_limit: int = 50
) -> ClusterSpec:
    profile = load_profile(profile_name)
    engine = EngineConfig.for_profile(
        profile,
        graph_tokens=GRAPH_TOKENS,
        prefill_scale=constants.prefill_scale,
        step_overhead_s=constants.step_ms * 1e-3,
        seq_overhead_s=constants.seq_ms * 1e-3,
        prefill_overhead_s=constants.prefill_ms * 1e-3,
        eager_s=constants.eager_ms * 1e-3,
        eager_send_s=constants.eager_send_ms * 1e-3,
        send_s=constants.send_ms * 1e-3,
        send_more_s=constants.send_more_ms * 1e-3,
        receive_s=constants.receive_ms * 1e-3,
    )
    slow = msgspec.structs.replace(
        engine,
        prefill_scale=constants.prefill_scale * constants.slow_prefill,
        seq_overhead_s=constants.slow_seq_ms * 1e-3,
    )
    return ClusterSpec(
        workers=tuple(
            WorkerSpec(name, role, profile, slow if name == "R0" else engine)
            for name, role in parse_config(config)
        ),
        link=Link(constants.link_gb_s * 1e9),
        request_s=constants.request_ms * 1e-3,
        crowd_s=constants.crowd_ms * 1e-3,
        handoff_s=constants.handoff_ms * 1e-3,
        push_s=constants.push_ms * 1e-3,
        client_limit=client_limit,
    )


def conversations(
    workload: str,
    qps: float,
    seed: int,
    duration_s: float = POINT_S,
    count: int | None = None,
    kept_tokens: float = 0.0,
) -> list[Conversation]:
    """Two-turn chats as the authors' client began them.

    `count`: how many it came to, where that is known. `kept_tokens`: the mean of how much of an answer
    becomes the same tokens again when it comes back as text.
    """
    rng = random.Random(f"{seed} {workload} {qps}")
    size, _, shape = workload.partition("_")
    turns = (FIRST_TURN[size], TurnSpec(*SHAPES[Ratio(shape)]))
    starts = _starts(rng, qps, duration_s, count)
    kept = [round(rng.expovariate(1 / kept_tokens)) if kept_tokens else 0 for _ in starts]
    return [
        Conversation(i, at_s, turns, retokenized=True, kept_tokens=n)
        for i, (at_s, n) in enumerate(zip(starts, kept, strict=True))
    ]


def _starts(rng: random.Random, qps: float, duration_s: float, count: int | None) -> list[float]:
    """Poisson arrivals, which end with the time or with the number that the rate asks for: no measured point
    has more, and half of them have just that many."""
    most = max(1, round(qps * duration_s))
    if count is not None and count < most:  # the time ran out: that many fell into it
        return sorted(rng.random() * duration_s for _ in range(max(1, count)))
    while True:
        starts = list(islice(poisson(rng, qps, duration_s), most))
        if len(starts) == most or (starts and count is None):
            return starts


def simulate(key: Key, constants: Constants, seed: int = 0, count: int | None = None) -> list[Job]:
    config, workload, qps = key
    local = frozenset(name for name, _ in parse_config(config) if name.startswith("pD"))
    router = ReleasedRouter(local, constants.lost, seed)
    chats = conversations(workload, qps, seed, count=count, kept_tokens=constants.kept_tokens)
    return SimCluster(cluster_spec(config, constants), router).run(chats)


def point(key: Key, jobs: list[Job]) -> Point:
    """The second turns' figures, in the form of the published sweep."""
    second = [j for j in jobs if j.index == 1 and not j.failed]
    ttft = sorted(1e3 * j.ttft_s for j in second)
    tpot = sorted(1e3 * j.tpot_s for j in second)
    span_s = max(j.end_s for j in jobs) - min(j.asked_s for j in jobs)
    return Point(
        *key,
        n=len(second),
        ttft_ms=fmean(ttft) if ttft else 0.0,
        ttft_p50_ms=_quantile(ttft, 0.5),
        ttft_p99_ms=_quantile(ttft, 0.99),
        tpot_ms=fmean(tpot) if tpot else 0.0,
        tpot_p50_ms=_quantile(tpot, 0.5),
        tpot_p99_ms=_quantile(tpot, 0.99),
        tokens_per_s=sum(j.n_out for j in jobs) / span_s,
        success_pct=100.0 * sum(not j.failed for j in jobs) / len(jobs),
    )


def _quantile(ordered: list[float], q: float) -> float:
    """Between the two neighbours, as the measured points' were taken."""
    if not ordered:
        return 0.0
    below, part = divmod(q * (len(ordered) - 1), 1)
    i = int(below)
    return ordered[i] + part * (ordered[min(i + 1, len(ordered) - 1)] - ordered[i])


def middle(points: Sequence[Point]) -> Point:
    """Of one point's runs with several seeds, the median of each figure."""
    if len(points) == 1:
        return points[0]
    first = points[0]
    figures = {name: median(getattr(p, name) for p in points) for name in _FIGURES}
    return msgspec.structs.replace(first, n=round(figures.pop("n")), **figures)


def _one(task: "_Task") -> Point:
    runs = (simulate(task.key, task.constants, seed, task.chats) for seed in task.seeds)
    return middle([point(task.key, jobs) for jobs in runs])


def run(
    wanted: Sequence[Key],
    constants: Constants,
    seeds: Sequence[int] = (0,),
    processes: int = 1,
    counts: Sequence[int] | None = None,
) -> Iterator[Point]:
    """Each point as it is done, in the order of `wanted`; the middle of several seeds.

    `counts`: how many chats each point had, where that is known.
    """
    each = counts if counts is not None else [None] * len(wanted)
    tasks = [_Task(key, constants, tuple(seeds), count) for key, count in zip(wanted, each, strict=True)]
    yield from parallel.each(_one, tasks, processes, chunksize=8)


class _Task(NamedTuple):
    key: Key
    constants: Constants
    seeds: tuple[int, ...]
    chats: int | None
