"""The connector that vLLM loads by `kv_connector_module_path`: its own NIXL one, plus spans and reports.

It keeps the name `NixlConnector`, because vLLM asks for that name where it treats NIXL specially.
"""

import logging
from pathlib import Path
from typing import Any

from ppd.core.names import SERVICE_KV
from ppd.runtime import otlp, tracing
from workers.connector.internals import (
    KVConnectorRole,
    NixlBaseConnector,
    NixlPullConnector,
    ReportingScheduler,
    TracingWorker,
    mismatch,
    registered_kv,
)
from workers.connector.progress import sleep_between_polls
from workers.connector.reporter import Reporter
from workers.connector.spans import Puller
from workers.connector.transfers import TransferBook
from workers.facts import ConnectorFacts, write_facts

_log = logging.getLogger("vllm.ppd")


class NixlConnector(NixlPullConnector):
    """vLLM's NIXL pull connector, which says what it is and what it moves.

    Its own settings are `kv_connector_extra_config.ppd`: worker_id, run_dir, otlp_endpoint, sample_ratio,
    poll_ms, plain_on_mismatch. Raises RuntimeError for a vLLM that it does not know, unless the last is true:
    then it is vLLM's own connector, without spans, reports and pull-back.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._own = vllm_config.kv_transfer_config.get_from_extra_config("ppd", {})
        self._run_dir = Path(self._own["run_dir"]) if self._own.get("run_dir") else None
        self._reporter: Reporter | None = None
        self._config = vllm_config
        sleep_between_polls(int(self._own.get("poll_ms", 0)))
        why = mismatch()
        if why and not self._own.get("plain_on_mismatch"):
            raise RuntimeError(f"{why}; --plain-connector-on-mismatch would serve without KV spans")
        if why:
            _log.warning("%s: SERVING WITHOUT KV SPANS, REPORTS AND PULL-BACK, on vLLM's own connector", why)
            # It would hold the KV of every turn for its whole lease, not only where a pull-back is wanted.
            vllm_config.kv_transfer_config.kv_connector_extra_config["bidirectional_kv_xfer"] = False
            super().__init__(vllm_config, role, kv_cache_config)
            return
        # Not NixlPullConnector's: that would build vLLM's own halves, each with a NIXL agent.
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        worker_id = str(self._own.get("worker_id", ""))
        if role == KVConnectorRole.SCHEDULER:
            scheduler = ReportingScheduler(vllm_config, self.engine_id, kv_cache_config)
            self._reporter = Reporter(Puller(worker_id, self.engine_id, 0, ""), None, self._run_dir)
            scheduler.report_to(self._reporter, worker_id)
            self.connector_scheduler = scheduler
        else:
            worker = TracingWorker(vllm_config, self.engine_id, kv_cache_config)
            puller = Puller(worker_id, self.engine_id, worker.tp_rank, "+".join(worker.nixl_backends))
            self._reporter = Reporter(puller, self._tracer(worker_id), self._run_dir)
            worker.follow_in(TransferBook(self._reporter.put))
            self.connector_worker = worker

    def _tracer(self, worker_id: str) -> Any:
        try:
            export = otlp.resolve(str(self._own.get("otlp_endpoint") or ""))
        except otlp.OtlpError as error:
            _log.warning("KV transfers are not traced: %s", error)
            return None
        if export is None:
            return None
        ratio = self._own.get("sample_ratio")
        ratio = None if ratio is None else float(ratio)
        return tracing.setup(SERVICE_KV, export, worker_id, ratio, fixed_name=True)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        super().set_xfer_handshake_metadata_pp_aware(metadata)
        scheduler = self.connector_scheduler
        if self._run_dir is not None and scheduler is not None:
            facts = ConnectorFacts(
                worker_id=self._own.get("worker_id", ""),
                connector=type(self).__name__,
                side_channel_host=scheduler.side_channel_host,
                side_channel_port=scheduler.side_channel_port,
                dtype=str(self._config.model_config.dtype).removeprefix("torch."),
                tensor_parallel=self._config.parallel_config.tensor_parallel_size,
                max_batch_tokens=self._config.scheduler_config.max_num_batched_tokens,
                bidirectional=bool(scheduler.is_bidirectional_kv_xfer_enabled),
                releases=isinstance(scheduler, ReportingScheduler),
                **registered_kv(metadata),
            )
            write_facts(self._run_dir, facts)

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[no-untyped-call]
        if self._reporter is not None:
            self._reporter.close()
            tracing.shutdown()
