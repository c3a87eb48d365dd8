"""An engine's WorkerRecord, from what the engine itself says."""

import time
from pathlib import Path
from typing import Any

from ppd.core.names import Role, WorkerStatus
from ppd.core.records import WorkerRecord
from workers.engine.client import EngineClient, EngineError
from workers.engine.metrics import cache_info
from workers.facts import ConnectorFacts, read_facts
from workers.settings import WorkerSettings

_MAX_OTHERS = 1024
_MAX_NAME = 512


async def describe(
    settings: WorkerSettings, worker_id: str, url: str, engine: EngineClient, run_dir: Path
) -> WorkerRecord:
    """The record of an engine that answers. Raises EngineError where it does not tell what is needed."""
    models = await engine.models()
    model = models[0]
    try:
        cache = cache_info(await engine.metrics())
        block_tokens = int(cache["block_size"])
        blocks = int(cache["num_gpu_blocks"])
    except (ValueError, KeyError) as error:
        raise EngineError(f"{engine.url} does not tell its KV cache's size: {error}") from error
    record = WorkerRecord(
        worker_id=worker_id,
        name=settings.name,
        role=Role(settings.role),
        backend=settings.engine,
        model=str(model["id"]),
        other_models=other_models(models),
        model_path=settings.model,
        url=url,
        status=WorkerStatus.READY,
        engine_version=await engine.version(),
        block_size_tokens=block_tokens,
        kv_capacity_tokens=int(cache.get("kv_cache_size_tokens") or blocks * block_tokens),
        max_model_len_tokens=int(model.get("max_model_len") or 0),
        tensor_parallel=settings.tensor_parallel,
        dtype=settings.dtype,
        hardware=settings.hardware or settings.backend,
        started_unix_s=time.time(),
    )
    if record.role is not Role.REPLICA:
        _add_connector(record, _connector_facts(settings, worker_id, run_dir))
    return record


def other_models(models: list[dict[str, Any]]) -> dict[str, str]:
    """The second names and adapters in an engine's list of models, each with the model that it adapts; empty
    for a second name. Bounded."""
    named = ((str(each["id"]), str(each.get("parent") or "")) for each in models[1 : _MAX_OTHERS + 1])
    return {name: parent for name, parent in named if len(name) <= _MAX_NAME}


def _connector_facts(settings: WorkerSettings, worker_id: str, run_dir: Path) -> ConnectorFacts:
    try:
        facts = read_facts(run_dir)
    except ValueError as error:
        raise EngineError(str(error)) from error
    if facts is None:
        raise EngineError(
            f"the engine's KV connector left no facts in {run_dir}: a {settings.role} engine must be started "
            "with this project's connector and that `run_dir` (workers/README.md has the flags)"
        )
    if not settings.attach and facts.worker_id != worker_id:
        raise EngineError(f"the facts in {run_dir} are those of {facts.worker_id}, not of {worker_id}")
    return facts


def _add_connector(record: WorkerRecord, facts: ConnectorFacts) -> None:
    record.engine_id = facts.engine_id
    record.kv_connector = facts.connector
    record.side_channel_host = facts.side_channel_host
    record.side_channel_port = facts.side_channel_port
    record.block_size_tokens = facts.block_size_tokens
    record.kv_bytes_per_token = facts.kv_bytes_per_token
    record.kv_capacity_tokens = facts.kv_capacity_tokens
    record.kv_layout = facts.kv_layout
    record.dtype = facts.dtype
    record.kv_compatibility = facts.compatibility
    record.tensor_parallel = facts.tensor_parallel
    record.max_batch_tokens = facts.max_batch_tokens
    record.bidirectional = facts.bidirectional
    record.releases = facts.releases
