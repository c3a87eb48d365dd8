"""The connector that vLLM loads by `kv_connector_module_path`: its own NIXL one, plus spans and reports.

It keeps the name `NixlConnector`, because vLLM asks for that name where it treats NIXL specially.
"""

from pathlib import Path
from typing import Any

from workers.connector.internals import NixlPullConnector, mismatch, registered_kv
from workers.facts import ConnectorFacts, write_facts


class NixlConnector(NixlPullConnector):
    """vLLM's NIXL pull connector, which says what it is and what it moves."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._own = vllm_config.kv_transfer_config.get_from_extra_config("ppd", {})
        if why := mismatch():
            raise RuntimeError(why)
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        super().set_xfer_handshake_metadata_pp_aware(metadata)
        scheduler = self.connector_scheduler
        if (run_dir := self._own.get("run_dir")) and scheduler is not None:
            facts = ConnectorFacts(
                worker_id=self._own.get("worker_id", ""),
                connector=type(self).__name__,
                side_channel_host=scheduler.side_channel_host,
                side_channel_port=scheduler.side_channel_port,
                dtype=str(self._config.model_config.dtype).removeprefix("torch."),
                tensor_parallel=self._config.parallel_config.tensor_parallel_size,
                max_batch_tokens=self._config.scheduler_config.max_num_batched_tokens,
                bidirectional=bool(scheduler.is_bidirectional_kv_xfer_enabled),
                **registered_kv(metadata),
            )
            write_facts(Path(run_dir), facts)
