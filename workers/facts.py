"""What the connector says of its engine, for the agent: a small JSON file in the folder that they share."""

import os
from pathlib import Path

import msgspec

FACTS_FILE = "facts.json"


class ConnectorFacts(msgspec.Struct, kw_only=True):
    """Written inside the engine once its KV cache is registered with NIXL."""

    worker_id: str = ""  # as the agent passed it on, so that an old file is not taken for a new one
    engine_id: str
    connector: str
    side_channel_host: str
    side_channel_port: int
    block_size_tokens: int
    kv_bytes_per_token: int  # over all tensor-parallel ranks
    kv_capacity_tokens: int
    kv_layout: str
    dtype: str
    tensor_parallel: int
    max_batch_tokens: int
    bidirectional: bool
    releases: bool = False  # frees a prefill's blocks by the turn's id
    compatibility: str = ""  # vLLM's own hash of what two engines must agree on


def write_facts(run_dir: Path, facts: ConnectorFacts) -> None:
    """Put the file there in one step, so that a reader never sees half of it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    draft = run_dir / f"{FACTS_FILE}.{os.getpid()}"
    draft.write_bytes(msgspec.json.encode(facts))
    draft.replace(run_dir / FACTS_FILE)


def read_facts(run_dir: Path) -> ConnectorFacts | None:
    """The facts, or None while there are none. Raises ValueError for a file that is something else."""
    try:
        data = (run_dir / FACTS_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=ConnectorFacts)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{run_dir / FACTS_FILE}: {error}") from error
