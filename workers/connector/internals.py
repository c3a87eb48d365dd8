"""All that touches vLLM's internals: what may move with a vLLM version is named here and nowhere else.

Written against the NIXL pull connector of the versions in SUPPORTED; `supported()` is asked at start.
"""

from typing import Any

import msgspec
from vllm import __version__ as vllm_version
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    NIXL_CONNECTOR_VERSION,
    NixlAgentMetadata,
    NixlHandshakePayload,
)

SUPPORTED = ("0.32.",)
SUPPORTED_PROTOCOL = 14

__all__ = ["SUPPORTED", "NixlPullConnector", "mismatch", "registered_kv", "vllm_version"]


def mismatch() -> str:
    """Why this vLLM is not one that the connector was written for; empty if it is."""
    if not vllm_version.startswith(SUPPORTED):
        return (
            f"vLLM {vllm_version} is not supported by this KV connector (it knows "
            f"{', '.join(v + 'x' for v in SUPPORTED)})"
        )
    if NIXL_CONNECTOR_VERSION != SUPPORTED_PROTOCOL:
        return f"vLLM's NIXL protocol {NIXL_CONNECTOR_VERSION} is not the known one ({SUPPORTED_PROTOCOL})"
    return ""


def registered_kv(metadata: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """What the ranks registered with NIXL: block size, bytes a token over all ranks, capacity, layout.

    `metadata` is what vLLM hands to `set_xfer_handshake_metadata_pp_aware`, keyed by (pp rank, tp rank).
    """
    ranks: list[NixlAgentMetadata] = []
    signature = ""
    for payload in metadata.values():
        if isinstance(payload, NixlHandshakePayload):
            signature = payload.compatibility_hash
            ranks.append(msgspec.msgpack.decode(payload.agent_metadata_bytes, type=NixlAgentMetadata))
    if not ranks:
        return {}
    first = ranks[0]
    return {
        "engine_id": first.engine_id,
        "kv_layout": first.kv_cache_layout,
        "block_size_tokens": first.block_size * first.physical_blocks_per_logical_kv_block,
        "kv_capacity_tokens": first.num_blocks * first.block_size,
        "kv_bytes_per_token": sum(sum(rank.block_lens) for rank in ranks) // first.block_size,
        "compatibility": signature,
    }
