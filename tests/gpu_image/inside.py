"""Runs in the GPU image: what its vLLM makes of the engines' command lines, as JSON.

Its argument is a JSON list of `ppd worker` command lines. It goes as far as vLLM does without a device:
arguments are parsed, `VllmConfig` is made for CUDA, and the scheduler's half of the KV connector is built on
it. Weights, KV caches and the worker's half of the connector need a device.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

MODEL = "/tmp/model"
_BLOCKS = 1000


def write_model() -> None:
    """The configuration of Qwen2.5-7B-Instruct, without weights."""
    from transformers import Qwen2Config

    Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=32_768,
        dtype="bfloat16",
    ).save_pretrained(MODEL)


def engine_config(argv: list[str]) -> tuple[Any, Any]:
    """The agent's settings, and vLLM's configuration of the engine that it would start."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from ppd.runtime.settings import load
    from workers.engine.command import Start, engine_argv, engine_env
    from workers.settings import WorkerSettings

    cut = argv.index("--") if "--" in argv else len(argv)
    settings = load(WorkerSettings, argv[:cut], "ppd worker")
    settings.engine_args = argv[cut + 1 :]
    start = Start(f"{settings.name}-1", settings.port, settings.side_channel_port, Path("/tmp/run"))
    os.environ |= engine_env(settings, start)
    _, dash_m, module, *words = engine_argv(settings, start)
    assert (dash_m, module) == ("-m", "vllm.entrypoints.openai.api_server")
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    validate_parsed_serve_args(args)
    assert args.enable_prompt_tokens_details
    return args, AsyncEngineArgs.from_cli_args(args).create_engine_config()


def connector_facts(config: Any) -> dict[str, Any]:
    """Of the scheduler's half of the KV connector, built as vLLM's engine core builds it."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    model, parallel = config.model_config, config.parallel_config
    spec = FullAttentionSpec(
        block_size=config.cache_config.block_size,
        num_kv_heads=model.get_num_kv_heads(parallel),
        head_size=model.get_head_size(),
        dtype=model.dtype,
    )
    caches = KVCacheConfig(_BLOCKS, [], [KVCacheGroupSpec(["model.layers.0.self_attn.attn"], spec)])
    with set_current_vllm_config(config):
        connector = KVConnectorFactory.create_connector(config, KVConnectorRole.SCHEDULER, caches)
    scheduler = connector.connector_scheduler
    return {
        "connector": f"{type(connector).__module__}.{type(connector).__name__}",
        "scheduler": type(scheduler).__name__,
        "side_channel": [scheduler.side_channel_host, scheduler.side_channel_port],
        "bidirectional": scheduler.is_bidirectional_kv_xfer_enabled,
        "supports_hma": KVConnectorFactory.supports_hma_config(config.kv_transfer_config),
    }


def facts(argv: list[str]) -> dict[str, Any]:
    args, config = engine_config(argv)
    transfer = config.kv_transfer_config
    return {
        "served_name": args.served_model_name,
        "host": args.host,
        "port": args.port,
        "device": config.device_config.device_type,
        "visible_devices": os.environ["CUDA_VISIBLE_DEVICES"],
        "dtype": str(config.model_config.dtype),
        "max_model_len": config.model_config.max_model_len,
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "block_size": config.cache_config.block_size,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "kv_role": transfer.kv_role if transfer else None,
        "kv_buffer_device": transfer.kv_buffer_device if transfer else None,
        "kv_load_failure_policy": transfer.kv_load_failure_policy if transfer else None,
        "kv_connector": connector_facts(config) if transfer else None,
    }


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    write_model()
    print(json.dumps([facts(argv) for argv in json.loads(sys.argv[1])]), file=out)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
