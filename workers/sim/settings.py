"""Command line of one simulated engine."""

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path

from ppd.core.names import Role
from ppd.runtime.engine_key import VLLM_VARIABLE


@dataclass(frozen=True, slots=True)
class SimSettings:
    model: str
    role: Role
    hardware: str
    host: str = "127.0.0.1"
    port: int = 8100
    advertise_host: str = ""
    block_size: int = 0
    kv_capacity: int = 0
    max_model_len: int = 0
    max_batch_tokens: int = 0
    pullback: bool = True
    lease_s: float = 30.0
    hold_s: float = 120.0
    link_gb_per_s: float = 0.0
    setup_ms: float = 2.0
    mean_output_tokens: float = 128.0
    speed: float = 1.0
    run_dir: Path | None = None
    worker_id: str = ""
    otlp_endpoint: str = ""
    sample_ratio: float | None = None
    api_key: str = field(default="", repr=False)
    served_model_name: tuple[str, ...] = ()


def parse(argv: list[str]) -> SimSettings:
    """Prints what is wrong and exits with 2 where a flag cannot be used."""
    parser = argparse.ArgumentParser("workers.sim.server", description="An engine without a GPU or a model.")
    add = parser.add_argument
    add("--model", required=True, help="the name that clients ask for")
    add("--role", required=True, type=Role, choices=list(Role), help="prefill, decode or replica")
    add("--hardware", default="h100-llama-3.1-8b", help="a profile of ppd.core.hardware")
    add("--host", default="127.0.0.1", help="where to listen")
    add("--port", type=int, default=8100)
    add("--advertise-host", default="", help="the host that other engines reach this one by")
    add("--block-size", type=int, default=0, help="tokens in a KV block; 0: the profile's")
    add("--kv-capacity", type=int, default=0, help="KV memory in tokens; 0: the profile's")
    add("--max-model-len", type=int, default=0, help="longest context in tokens; 0: the profile's")
    add("--max-batch-tokens", type=int, default=0, help="token budget of one step; 0: the profile's")
    add("--pullback", action=argparse.BooleanOptionalAction, default=True, help="D's KV can be pulled back")
    add("--lease-s", type=float, default=30.0, help="how long a prefill's blocks wait to be read")
    add("--hold-s", type=float, default=120.0, help="how long a decode engine's blocks wait for a pull-back")
    add(
        "--link-gb-per-s",
        type=float,
        default=0.0,
        help="one direction of this engine's link; 0: the profile's",
    )
    add("--setup-ms", type=float, default=2.0, help="of each KV transfer")
    add("--mean-output-tokens", type=float, default=128.0, help="natural answers; 0: up to max_tokens always")
    add("--speed", type=float, default=1.0, help="how many times faster than the hardware")
    add("--run-dir", type=Path, default=None, help="where the agent looks for the connector's facts")
    add("--worker-id", default="", help="this incarnation's id, for the facts")
    add("--otlp-endpoint", default="", help="where spans of KV transfers go; empty: as OTEL_… says")
    add("--sample-ratio", type=float, default=None, help="share of KV transfers without a turn to trace")
    add("--served-model-name", nargs="+", default=(), help="further names of the model")
    settings = vars(parser.parse_args(argv))
    settings["served_model_name"] = tuple(settings["served_model_name"])
    return SimSettings(**settings, api_key=os.environ.get(VLLM_VARIABLE, ""))
