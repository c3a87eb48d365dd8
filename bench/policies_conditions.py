"""The arena's conditions: clusters, traffic and limits that differ in kind.

How much traffic each gets is not chosen here: `bench.policies_rates` finds it by one rule that looks at no
policy but fixed shares, and writes it to `policies_rates.json`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

from ppd.core.engine import Link
from ppd.core.hardware import load_profile
from ppd.core.names import Role
from simulator import mooncake
from simulator.cluster import ClusterSpec, SimCluster
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
    WorkloadShape,
    bursty,
    generate,
    joined,
    poisson,
)

RATES_FILE = "policies_rates.json"
RATE_SEEDS = (9001, 9002, 9003)  # the search's own: the arena refuses them
_TRACE_S = 3600.0

Load = Callable[[float, int, float], list[Conversation]]  # rate, seed, duration in s
Drift = Callable[[SimCluster], None]


@dataclass(frozen=True, slots=True)
class Condition:
    name: str
    what: str
    placement: str
    spec: ClusterSpec
    load: Load
    rate: float  # conversations a second; of the trace, its speed
    ttft_ms: float  # limits of the goodput, for turns after the first
    tpot_ms: float
    drift: Drift | None = None  # at half of the run
    drifts: bool = False  # something changes then, if only the traffic; the run is twice as long

    def traffic(self, seed: int, duration_s: float) -> list[Conversation]:
        return self.load(self.rate, seed, duration_s)


class NoRateError(LookupError):
    """A condition has no rate yet; the message says how it gets one."""


def rates() -> dict[str, float]:
    """The rates that were found, by condition."""
    file = resources.files(__package__ or "bench").joinpath(RATES_FILE)
    found = json.loads(file.read_text())["conditions"] if file.is_file() else {}
    return {name: each["rate"] for name, each in found.items()}


def chats(shape: WorkloadShape, bursts: bool = False) -> Load:
    def load(rate: float, seed: int, duration_s: float) -> list[Conversation]:
        return generate(shape, rate, duration_s, seed, bursty if bursts else poisson)

    return load


def flipped(first: WorkloadShape, second: WorkloadShape, times: float) -> Load:
    """One kind of traffic for half of the time, then another, at `times` the first one's rate."""

    def load(rate: float, seed: int, duration_s: float) -> list[Conversation]:
        half = duration_s / 2
        return joined(generate(first, rate, half, seed), generate(second, rate * times, half, seed + 1), half)

    return load


def trace(path: Path) -> Load:
    """A window of the Mooncake trace, another one for each seed; the last windows are the rate search's."""

    def load(rate: float, seed: int, duration_s: float) -> list[Conversation]:
        windows = max(2, int(_TRACE_S / rate / duration_s))
        its_own = min(len(RATE_SEEDS), windows // 2)
        if seed in RATE_SEEDS:
            number = windows - 1 - RATE_SEEDS.index(seed) % its_own
        else:
            number = seed % (windows - its_own)
        begin_s = number * duration_s
        found = [c for c in _rebuilt(path, rate) if begin_s <= c.start_s < begin_s + duration_s]
        return [replace(c, id=i, start_s=c.start_s - begin_s) for i, c in enumerate(found)]

    return load


@lru_cache(maxsize=1)
def _rebuilt(path: Path, speedup: float) -> list[Conversation]:
    return mooncake.conversations(mooncake.read(path), speedup=speedup)


def slower_link(cluster: SimCluster) -> None:
    cluster.link = Link(cluster.link.bytes_per_s / 15, cluster.link.setup_s * 15)


def other_gpus(cluster: SimCluster) -> None:
    """The decode workers are A100s from now on."""
    for worker in cluster.of(Role.DECODE):
        worker.engine.profile = load_profile(A100)


def mixed_fleet() -> ClusterSpec:
    """P on an A100; D on an H100 and two A100s."""
    return fleet("1P3D", (A100, H100, A100, A100))


def conditions(mooncake_trace: Path | None, at: Mapping[str, float] | None = None) -> list[Condition]:
    """All of them, at the rates that were found or at those of `at`; the trace's own only with its file.

    Raises NoRateError.
    """
    rate = rates() if at is None else at
    try:
        return _conditions(mooncake_trace, rate)
    except KeyError as error:
        raise NoRateError(f"no rate for {error}: python -m bench.policies_rates finds them") from error


def _conditions(mooncake_trace: Path | None, rate: Mapping[str, float]) -> list[Condition]:
    def make(
        name: str, what: str, spec: ClusterSpec, load: Load, ttft_ms: float, tpot_ms: float, placement: str
    ) -> Condition:
        return Condition(name, what, placement, spec, load, rate[name], ttft_ms, tpot_ms)

    one_p, two_p, three_p = fleet("1P3D"), fleet("2P2D"), fleet("3P1D")
    small_d = fleet("3P1D", kv_capacity_tokens=120_000)
    slow_link = fleet("2P2D", link_gb_s=1.0)
    reuse = "tools: 90 % of each prompt is reused"
    mixed = "P on an A100, D on H100 and A100"
    found = [
        make("p-scarce", "one P, later turns add up on it", one_p, chats(WILDCHAT), 300, 16, "1P3D"),
        make("p-plenty", "three P, one busy D", three_p, chats(WILDCHAT), 300, 20, "3P1D"),
        make("d-scarce", "one D whose KV memory fills", small_d, chats(SHAREGPT), 300, 20, "3P1D"),
        make("long-context", "about 9,000 tokens at first", two_p, chats(LONG_CONTEXT), 400, 18, "2P2D"),
        make("decode-heavy", "long answers", two_p, chats(DECODE_HEAVY), 300, 18, "2P2D"),
        make("prefill-heavy", "pastes of 900 tokens", two_p, chats(PREFILL_HEAVY), 300, 18, "2P2D"),
        make("bursty", "four fifths in a fifth of the time", one_p, chats(WILDCHAT, True), 400, 18, "1P3D"),
        make("slow-link", "1 GB/s between P and D", slow_link, chats(WILDCHAT), 300, 16, "2P2D"),
        make("prefill-idle", "P idle, D without slack", three_p, chats(PREFILL_HEAVY), 400, 14, "3P1D"),
        make("agentic", reuse, two_p, chats(AGENTIC), 250, 16, "2P2D"),
        make("16-turns", "16 turns each", one_p, chats(SIXTEEN_TURNS), 200, 16, "1P3D"),
        make("mixed-fleet", mixed, mixed_fleet(), chats(WILDCHAT), 400, 25, "1P3D"),
        replace(
            make("drift-link", "the link slows fifteenfold", two_p, chats(WILDCHAT), 250, 16, "2P2D"),
            drift=slower_link,
            drifts=True,
        ),
        replace(
            make("drift-gpu", "D's GPUs become A100s", two_p, chats(PREFILL_HEAVY), 400, 30, "2P2D"),
            drift=other_gpus,
            drifts=True,
        ),
        # Each kind at its own condition's rate, as the limits are the same.
        Condition(
            "drift-traffic",
            "decode-heavy becomes prefill-heavy",
            "2P2D",
            two_p,
            flipped(DECODE_HEAVY, PREFILL_HEAVY, rate["prefill-heavy"] / rate["decode-heavy"]),
            rate["decode-heavy"],
            300,
            18,
            drifts=True,
        ),
    ]
    if mooncake_trace is not None:
        found.append(make("mooncake", "a real hour of chats", two_p, trace(mooncake_trace), 1500, 25, "2P2D"))
    return found
