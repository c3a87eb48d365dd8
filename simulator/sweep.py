"""The paper's 3,060 points: 17 placements of four H100s, 18 workloads, 10 rates."""

import random
import re
from dataclasses import dataclass
from statistics import fmean

import msgspec

from ppd.core.cells import QPS_LEVELS, SHAPES
from ppd.core.engine import EngineConfig, Link
from ppd.core.hardware import load_profile
from ppd.core.names import Role
from simulator.cluster import Cluster, ClusterSpec, Job, WorkerSpec
from simulator.conversation import Conversation, TurnSpec
from simulator.fixed import FixedRouter

POINT_S = 10.0  # arrivals of one point
FIRST_TURN = {"small": TurnSpec(128, 128), "large": TurnSpec(1024, 1024)}
WORKLOADS = tuple(f"{size}_{shape}" for size in FIRST_TURN for shape in SHAPES)
CONFIGS = (
    *("4R", "1P_3D", "2P_2D", "3P_1D", "1P_3pD", "2P_2pD", "3P_1pD", "1P_2D_1pD", "1P_1D_2pD", "2P_1D_1pD"),
    *("1R_1P_2D", "1R_1P_1D_1pD", "1R_1P_2pD", "1R_2P_1D", "1R_2P_1pD", "2R_1P_1D", "2R_1P_1pD"),
)
_PART = re.compile(r"(\d+)(R|P|D|pD)")


class Constants(msgspec.Struct, frozen=True):
    """What the authors' system cost beside its kernels: few numbers, the same at every point, in ms."""

    request_ms: float = 16.0  # HTTP, proxy and tokenizer, of each request
    step_ms: float = 1.35  # scheduling one step
    seq_ms: float = 0.06  # a sequence in a step
    prefill_ms: float = 2.0  # a step with prefill leaves the CUDA graph
    prefill_scale: float = 1.8  # what prefill adds to a step, by the kernel tables' figure
    replica_scale: float = 3.0  # the same on a worker that does both
    handoff_ms: float = 12.0  # what the second hop adds, whatever the load
    sender_ms: float = 35.0  # hand-offs leave P one after another
    receiver_ms: float = 15.0  # and enter D so
    link_gb_s: float = 10.0
    stray: float = 0.15  # of the turns meant to be D-local, those that went over P all the same


@dataclass(frozen=True, slots=True)
class Point:
    config: str
    workload: str
    qps: float


def points() -> list[Point]:
    return [Point(c, w, q) for c in CONFIGS for w in WORKLOADS for q in QPS_LEVELS]


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
    engines = {
        role: EngineConfig.for_profile(
            profile,
            prefill_scale=constants.replica_scale if role is Role.REPLICA else constants.prefill_scale,
            step_overhead_s=constants.step_ms * 1e-3,
            seq_overhead_s=constants.seq_ms * 1e-3,
            prefill_overhead_s=constants.prefill_ms * 1e-3,
        )
        for role in Role
    }
    return ClusterSpec(
        workers=tuple(WorkerSpec(name, role, profile, engines[role]) for name, role in parse_config(config)),
        link=Link(
            constants.link_gb_s * 1e9,
            sender_s=constants.sender_ms * 1e-3,
            receiver_s=constants.receiver_ms * 1e-3,
        ),
        request_s=constants.request_ms * 1e-3,
        handoff_s=constants.handoff_ms * 1e-3,
        client_limit=client_limit,
    )


def conversations(point: Point, seed: int, duration_s: float = POINT_S) -> list[Conversation]:
    """Poisson arrivals of two-turn chats, at least one."""
    rng = random.Random(f"{seed} {point.workload} {point.qps}")
    size, _, shape = point.workload.partition("_")
    turns = (FIRST_TURN[size], TurnSpec(*SHAPES[shape]))  # type: ignore[index]
    found: list[Conversation] = []
    at_s = rng.expovariate(point.qps)
    while at_s < duration_s or not found:
        found.append(Conversation(len(found), at_s, turns, retokenized=True))
        at_s += rng.expovariate(point.qps)
    return found


def simulate(point: Point, constants: Constants, seed: int = 0) -> list[Job]:
    local = frozenset(name for name, _ in parse_config(point.config) if name.startswith("pD"))
    router = FixedRouter(local, constants.stray, seed)
    return Cluster(cluster_spec(point.config, constants), router).run(conversations(point, seed))


class Figures(msgspec.Struct, frozen=True):
    """One point in the columns of the released sweep, in ms."""

    turn1_ttft: float
    turn1_tpot: float
    turn2_ttft: float
    turn2_tpot: float
    tokens_per_s: float


def figures(jobs: list[Job]) -> Figures:
    first, second = ([j for j in jobs if j.index == i] for i in (0, 1))
    span_s = max(j.end_s for j in jobs) - min(j.asked_s for j in jobs)
    return Figures(
        1e3 * fmean(j.ttft_s for j in first),
        1e3 * fmean(j.tpot_s for j in first),
        1e3 * fmean(j.ttft_s for j in second),
        1e3 * fmean(j.tpot_s for j in second),
        sum(j.n_out for j in jobs) / span_s,
    )
