"""Keeps this frontend's view of the engines up to date, from etcd's records and the engines' reports."""

import asyncio
import logging
from collections.abc import Callable

from controlplane.engines.cluster import Cluster
from controlplane.engines.evidence import ask
from controlplane.engines.links import Links
from controlplane.engines.pool import Pool
from controlplane.engines.transfers import Transfers
from controlplane.engines.worker import Patience
from controlplane.settings import FrontendSettings
from controlplane.telemetry import metrics
from ppd.core.names import Role
from ppd.core.records import KvMoved, WorkerRecord
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from ppd.runtime.registry import WorkerWatch


class Fleet:
    """Owns `cluster`, `links` and `transfers`, and feeds them with records and reports."""

    def __init__(
        self,
        settings: FrontendSettings,
        etcd: Etcd,
        bus: Bus,
        on_new: Callable[[WorkerRecord], None],
        logger: logging.Logger,
    ) -> None:
        """`on_new`: called with each record that was not there before."""
        self._settings = settings
        self._on_new = on_new
        self._loop = asyncio.get_running_loop()
        stuck_s = max(settings.suspect_s, settings.idle_s)
        patience = Patience(settings.suspect_s, stuck_s, settings.load_stale_s)
        self.cluster = Cluster(self._make_pool, logger, patience, ask)
        self.watch = WorkerWatch(etcd, settings.namespace, self.update, logger)
        self.transfers = Transfers(bus, settings.namespace, self._on_kv_moved, logger)
        self.links = Links()
        self._shown: set[tuple[str, str]] = set()  # labels (model, role) that the gauge has

    def _make_pool(self, url: str) -> Pool:
        return Pool(url, self._settings.connect_s, self._settings.engine_key)

    def update(self, workers: dict[str, WorkerRecord]) -> None:
        """The registry's new view, by worker id."""
        new = self.cluster.update(workers, self._loop.time())
        self._show()
        for record in new:
            self._on_new(record)

    def sweep(self, now_s: float, reports_come: bool) -> None:
        """Check the engines' deadlines. `reports_come`: NATS is connected, so that silence is the engines'
        own.
        """
        if self.cluster.sweep(now_s, reports_come):
            self._show()

    def _show(self) -> None:
        ready = {
            (model, role.value): len(found.ready[role])
            for model, found in self.cluster.by_model()
            for role in Role
        }
        for labels in self._shown | ready.keys():
            metrics.WORKERS.labels(*labels).set(ready.get(labels, 0))
        self._shown = set(ready)

    def _on_kv_moved(self, moved: KvMoved) -> None:
        workers = self.cluster.workers
        source, puller = workers.get(moved.source_worker_id), workers.get(moved.worker_id)
        if moved.direction != "p-d" or source is None or puller is None:
            return
        puller.reports_kv = True
        if moved.error:
            if not self.transfers.wanted(moved.request_id, moved.worker_id):
                return
            self.cluster.transfer_failed(source, puller, moved.error, self._loop.time())
        else:
            self.links.report(moved, puller.record.tensor_parallel)
