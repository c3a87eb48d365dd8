"""The arena's conditions: clusters, traffic and limits that differ in kind.

Rates were set by one rule, which looks at no other policy: the best of static x = 0, 1/2 and 1 keeps about
nine tenths of the turns within the limits, on a run of two and a half minutes (five where something drifts).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from ppd.core.engine import Link
from ppd.core.hardware import load_profile
from ppd.core.names import Role
from simulator import mooncake
from simulator.cluster import Cluster, ClusterSpec
from simulator.conversation import Conversation
from simulator.fleet import A100, H100, fleet
from simulator.workloads import (
    AGENTIC,
    DECODE_HEAVY,
    LONG_CONTEXT,
    PREFILL_HEAVY,
    SHAREGPT,
    SIXTEEN_TURNS,
    WILDCHAT,
    Shape,
    bursty,
    generate,
    joined,
    poisson,
)

Traffic = Callable[[int, float], list[Conversation]]  # seed, duration in s
Drift = Callable[[Cluster], None]


@dataclass(frozen=True, slots=True)
class Condition:
    name: str
    what: str
    placement: str
    spec: ClusterSpec
    traffic: Traffic
    ttft_ms: float  # limits of the goodput, for turns after the first
    tpot_ms: float
    drift: Drift | None = None  # at half of the run
    drifts: bool = False  # something changes then, if only the traffic; the run is twice as long


def chats(shape: Shape, per_s: float, bursts: bool = False) -> Traffic:
    def traffic(seed: int, duration_s: float) -> list[Conversation]:
        return generate(shape, per_s, duration_s, seed, bursty if bursts else poisson)

    return traffic


def flipped(first: Shape, second: Shape, first_per_s: float, second_per_s: float) -> Traffic:
    """One kind of traffic for half of the time, then another."""

    def traffic(seed: int, duration_s: float) -> list[Conversation]:
        half = duration_s / 2
        return joined(
            generate(first, first_per_s, half, seed), generate(second, second_per_s, half, seed + 1), half
        )

    return traffic


def trace(path: FilePath, speedup: float) -> Traffic:
    """A window of the Mooncake trace, another one for each seed."""
    built = mooncake.conversations(mooncake.read(path), speedup=speedup)

    def traffic(seed: int, duration_s: float) -> list[Conversation]:
        begin_s = (seed * duration_s) % (3600 / speedup - duration_s)
        found = [c for c in built if begin_s <= c.start_s < begin_s + duration_s]
        return [replace(c, id=i, start_s=c.start_s - begin_s) for i, c in enumerate(found)]

    return traffic


def slower_link(cluster: Cluster) -> None:
    cluster.link = Link(cluster.link.bytes_per_s / 15, cluster.link.setup_s * 15)


def other_gpus(cluster: Cluster) -> None:
    """The decode workers are A100s from now on."""
    for worker in cluster.of(Role.DECODE):
        worker.engine.profile = load_profile(A100)


def mixed_fleet() -> ClusterSpec:
    """P on an A100; D on an H100 and two A100s."""
    return fleet("1P3D", (A100, H100, A100, A100))


def conditions(mooncake_trace: FilePath | None) -> list[Condition]:
    """All of them; the trace's own only where its file is given."""
    found = [
        Condition(
            "p-scarce",
            "one P, later turns add up on it",
            "1P3D",
            fleet("1P3D"),
            chats(WILDCHAT, 7.1),
            300,
            16,
        ),
        Condition("p-plenty", "three P, one busy D", "3P1D", fleet("3P1D"), chats(WILDCHAT, 2.6), 300, 20),
        Condition(
            "d-scarce",
            "one D whose KV memory fills",
            "3P1D",
            fleet("3P1D", kv_capacity_tokens=120_000),
            chats(SHAREGPT, 6.5),
            300,
            20,
        ),
        Condition(
            "long-context",
            "about 9,000 tokens before each turn",
            "2P2D",
            fleet("2P2D"),
            chats(LONG_CONTEXT, 2.1),
            400,
            18,
        ),
        Condition("decode-heavy", "long answers", "2P2D", fleet("2P2D"), chats(DECODE_HEAVY, 2.6), 300, 18),
        Condition(
            "prefill-heavy", "pastes of 900 tokens", "2P2D", fleet("2P2D"), chats(PREFILL_HEAVY, 7.6), 300, 18
        ),
        Condition(
            "bursty",
            "four fifths of it in a fifth of the time",
            "1P3D",
            fleet("1P3D"),
            chats(WILDCHAT, 7.9, True),
            400,
            18,
        ),
        Condition(
            "slow-link",
            "1 GB/s between P and D",
            "2P2D",
            fleet("2P2D", link_gb_s=1.0),
            chats(WILDCHAT, 4.6),
            300,
            16,
        ),
        Condition(
            "prefill-idle",
            "P has nothing to do and D has no slack: always-local loses",
            "3P1D",
            fleet("3P1D"),
            chats(PREFILL_HEAVY, 4.2),
            400,
            14,
        ),
        Condition(
            "agentic",
            "tools: 90 % of each prompt is reused",
            "2P2D",
            fleet("2P2D"),
            chats(AGENTIC, 2.9),
            250,
            16,
        ),
        Condition("16-turns", "16 turns each", "1P3D", fleet("1P3D"), chats(SIXTEEN_TURNS, 3.2), 200, 16),
        Condition(
            "mixed-fleet",
            "P on an A100, D on H100 and A100",
            "1P3D",
            mixed_fleet(),
            chats(WILDCHAT, 6.6),
            400,
            25,
        ),
        Condition(
            "drift-link",
            "the link slows fifteenfold",
            "2P2D",
            fleet("2P2D"),
            chats(WILDCHAT, 4.6),
            250,
            16,
            slower_link,
            True,
        ),
        Condition(
            "drift-gpu",
            "D's GPUs become A100s",
            "2P2D",
            fleet("2P2D"),
            chats(PREFILL_HEAVY, 4.5),
            400,
            30,
            other_gpus,
            True,
        ),
        Condition(
            "drift-traffic",
            "decode-heavy becomes prefill-heavy",
            "2P2D",
            fleet("2P2D"),
            flipped(DECODE_HEAVY, PREFILL_HEAVY, 2.7, 7.2),
            300,
            18,
            drifts=True,
        ),
    ]
    if mooncake_trace is not None:
        found.append(
            Condition(
                "mooncake",
                "a real hour of chats",
                "2P2D",
                fleet("2P2D"),
                trace(mooncake_trace, 2.5),
                1500,
                25,
            )
        )
    return found
