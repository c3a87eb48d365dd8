"""The command line and environment that start vLLM for a role."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppd.core.names import Role
from ppd.runtime import engine_key, otlp
from workers.settings import WorkerSettings
from workers.sim.command import sim_argv

CONNECTOR = (
    "NixlConnector"  # the name that vLLM itself looks for in several places, with our module behind it
)
CONNECTOR_MODULE = "workers.connector.nixl"
_KV_ROLE: dict[str, str] = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
_CPU_BLOCK_TOKENS = 32  # vLLM's CPU default is 128: a short chat would never fill a block, and so never hit


@dataclass(frozen=True, slots=True)
class Start:
    """What one start of an engine is given beside the settings."""

    worker_id: str
    port: int
    side_channel_port: int
    run_dir: Path


def engine_argv(settings: WorkerSettings, start: Start) -> list[str]:
    """The engine's command line; the flags that the user gave come last, so that they win."""
    if settings.engine == "sim":
        return sim_argv(settings, start.worker_id, start.port, start.run_dir)
    flags: dict[str, object] = {
        "--model": settings.model,
        "--served-model-name": settings.served_name,
        "--host": settings.host,
        "--port": start.port,
        "--dtype": settings.dtype,
        "--tensor-parallel-size": settings.tensor_parallel,
    }
    if settings.max_model_len:
        flags["--max-model-len"] = settings.max_model_len
    if block_tokens := settings.block_size or (_CPU_BLOCK_TOKENS if settings.backend == "cpu" else 0):
        flags["--block-size"] = block_tokens
    if (export := settings.export) is not None:
        flags["--otlp-traces-endpoint"] = export.endpoint
    if settings.role in _KV_ROLE:
        flags["--kv-transfer-config"] = json.dumps(kv_transfer_config(settings, start))
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for flag, value in flags.items():
        argv += [flag, str(value)]
    argv.append("--enable-prompt-tokens-details")
    if settings.backend == "cpu":
        argv.append("--enforce-eager")
    return argv + settings.engine_args


def kv_transfer_config(settings: WorkerSettings, start: Start) -> dict[str, Any]:
    """vLLM's KVTransferConfig for the role, with this project's own part under `ppd`."""
    config: dict[str, Any] = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": _KV_ROLE[settings.role],
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": settings.pullback,
            "decoder_kv_blocks_ttl": settings.hold_s,
            "kv_recompute_threshold": settings.pullback_min_tokens,
            "ppd": {
                "worker_id": start.worker_id,
                "run_dir": str(start.run_dir),
                "sample_ratio": settings.sample_ratio,
                "poll_ms": settings.kv_poll_ms,
                "plain_on_mismatch": settings.plain_connector_on_mismatch,
            },
        },
    }
    if settings.backend == "cpu":
        config["kv_buffer_device"] = "cpu"
    return config


def engine_env(
    settings: WorkerSettings, start: Start, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The engine's environment; what the user already set is kept, but for ports and devices."""
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if settings.backend == "cpu":
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": f"{settings.kv_cache_gib:g}",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            # Eager mode leaves vLLM's small compiled functions: the first request for logprobs would hold
            # up all others for the 5 to 60 s of a compilation.
            "TORCHDYNAMO_DISABLE": "1",
        }
    if Path(settings.model).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    env |= engine_key.engine_environment(settings.engine_key, otlp.without_otlp(base))
    if (export := settings.export) is not None:
        env |= export.environment()
        env |= otlp.named(f"ppd-{settings.role}", start.worker_id, base)
    env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = settings.side_channel_host
    env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(start.side_channel_port)
    if settings.devices:
        env["CUDA_VISIBLE_DEVICES"] = settings.devices
    return env
