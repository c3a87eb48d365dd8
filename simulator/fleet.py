"""Clusters to run policies on: placements of profiles, with what a lean connector costs."""

from collections.abc import Sequence

from ppd.core.engine import EngineConfig, Link
from ppd.core.hardware import load_profile
from ppd.core.names import Role
from ppd.core.placement import parse_placement
from simulator.cluster import ClusterSpec, WorkerSpec

H100 = "h100-llama-3.1-8b"
A100 = "a100-llama-3.1-8b"
L40S = "l40s-llama-3.1-8b"
REQUEST_S = 0.008
STEP_S = 0.0012
SEQ_S = 0.00004
PREFILL_S = 0.002


def engine_config(profile_name: str, **changes: float) -> EngineConfig:
    return EngineConfig.for_profile(
        load_profile(profile_name),
        step_overhead_s=STEP_S,
        seq_overhead_s=SEQ_S,
        prefill_overhead_s=PREFILL_S,
        **changes,
    )


def fleet(
    placement: str,
    profiles: Sequence[str] = (H100,),
    link_gb_s: float = 50.0,
    setup_ms: float = 4.0,
    **changes: float,
) -> ClusterSpec:
    """A placement such as `1P3D`; `profiles` are taken in turn, worker by worker (P, then D, then R)."""
    roles = parse_placement(placement).roles()
    workers = []
    for i, role in enumerate(roles):
        name = profiles[i % len(profiles)]
        config = engine_config(name, **changes)
        workers.append(WorkerSpec(f"{role.letter.lower()}{i}", Role(role), load_profile(name), config))
    return ClusterSpec(
        workers=tuple(workers), link=Link(link_gb_s * 1e9, setup_s=setup_ms * 1e-3), request_s=REQUEST_S
    )
