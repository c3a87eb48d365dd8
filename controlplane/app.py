"""Puts one process of the frontend together: what its HTTP server serves, and the tasks beside it."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from opentelemetry.trace import Tracer

from controlplane import ui
from controlplane.admission.entry import Entry
from controlplane.admission.gate import Gate
from controlplane.admission.keys import Access
from controlplane.admission.quotas import Quota, shared_memory
from controlplane.api import surface
from controlplane.api.parts import Parts
from controlplane.engines.fleet import Fleet
from controlplane.http.asgi import Asgi
from controlplane.http.cors import Cors
from controlplane.http.exchange import Exchange
from controlplane.settings import FrontendSettings
from controlplane.shared.sessions import Sharing
from controlplane.shared.siblings import Siblings
from controlplane.shared.tables import Tables
from controlplane.shared.watches import watch_loads, watch_tables
from controlplane.telemetry import counts
from controlplane.telemetry.access_log import AccessLog
from controlplane.telemetry.recorder import Recorder
from controlplane.turn.conversations import History
from controlplane.turn.features import FeatureReader
from controlplane.turn.handler import TurnHandler
from controlplane.turn.ledger import Ledger
from controlplane.turn.leg import Engines
from controlplane.turn.lifecycle import Lifecycle
from controlplane.turn.route import Router
from controlplane.turn.stored import StoredResponses
from controlplane.turn.tokens import TokenCounter
from controlplane.upkeep import Upkeep
from ppd.core import policies
from ppd.core.records import WorkerRecord
from ppd.core.sessions import SessionStore
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from ppd.runtime.tasks import Supervisor


class Frontend:
    """What the server serves, and what runs beside it. Made inside a running loop."""

    def __init__(
        self,
        settings: FrontendSettings,
        tracer: Tracer | None,
        logger: logging.Logger,
        quota: Quota | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        """`quota` and `siblings`: where several processes share them. Raises KeyFileError."""
        self._settings = settings
        self._log = logger
        self.access = Access(settings.keys, quota or Quota(shared_memory(1)), logger)
        self._access_log = AccessLog(settings.access_log) if settings.access_log else None
        cors = Cors(settings.cors_origins) if settings.cors_origins else None
        entry = Entry(self.access, cors, self._access_log)
        self._loop = asyncio.get_running_loop()
        self.etcd = Etcd(settings.etcd)
        self.bus = Bus(settings.nats, "ppd-frontend", logger)
        self.fleet = Fleet(settings, self.etcd, self.bus, self._on_new_engine, logger)
        self.cluster, self.transfers = self.fleet.cluster, self.fleet.transfers
        self.tables = Tables(logger)
        self.sessions = SessionStore(settings.max_sessions, settings.session_ttl_s)
        self.tokens = TokenCounter(logger)
        self.features = FeatureReader(self.sessions, self.tokens)
        self._sessions_bus = Bus(settings.nats, "ppd-frontend-sessions", logger, echo=False)
        self.sharing = Sharing(
            self._sessions_bus,
            settings.namespace,
            settings.session_ttl_s,
            settings.session_wait_s,
            settings.processes > 1,
            logger,
        )
        self.history = History(self.sessions, self.transfers, self.sharing, logger)
        self.recorder = Recorder(self.bus, settings.namespace, settings.max_records, logger)
        self._siblings = siblings or Siblings()
        self.ledger = Ledger(
            self.cluster,
            self.features,
            self.history,
            self.transfers,
            self.recorder,
            self._siblings,
            settings.policy,
        )
        policy = policies.make(settings.policy)
        router = self.router = Router(
            self.cluster, policy, self.tables, self.fleet.links, settings.load_stale_s
        )
        engines = Engines(settings, logger)
        self.gate = Gate(settings.max_running, settings.max_queued, settings.queue_s)
        self.stored = StoredResponses(self.sharing, settings.session_ttl_s)
        turns = TurnHandler(
            settings, router, self.features, self.history, engines, self.stored, self.transfers, logger
        )
        parts = Parts(
            settings,
            self.cluster,
            self.fleet.watch,
            self.bus,
            self.tables,
            self.sessions,
            self._siblings,
            self.gate,
        )
        api = surface.build(parts)
        ui.mount(api, parts)
        self.lifecycle = Lifecycle(
            entry,
            turns,
            Asgi(api),
            self.cluster,
            self.gate,
            self.ledger,
            settings.turn_s,
            tracer,
            logger,
        )
        self.upkeep = Upkeep(self.fleet, self.bus, self.sessions, self.stored, self.gate, self._siblings)
        self.judge = self.lifecycle.judge
        self.lost = self.lifecycle.lost
        self._tasks = Supervisor(logger)
        self._loading: set[asyncio.Task[None]] = set()

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        return self.lifecycle(exchange)

    def _on_new_engine(self, record: WorkerRecord) -> None:
        if record.model_path:
            self._load_tokenizer(record.model, record.model_path)

    def _load_tokenizer(self, model: str, folder: str) -> None:
        task = asyncio.create_task(self.tokens.load(model, folder))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    def start(self) -> None:
        """Begin to watch and to report. Serving does not wait for any of it."""
        for pair in self._settings.tokenizer:
            model, _, folder = pair.partition("=")
            self._load_tokenizer(model, folder)
        self._tasks.start("workers", self.fleet.watch.run)
        self._tasks.start("loads", lambda: watch_loads(self.bus, self._settings.namespace, self.cluster))
        self._tasks.start("tables", lambda: watch_tables(self.bus, self._settings.namespace, self.tables))
        self._tasks.start("transfers", self.transfers.run)
        self._tasks.start("sessions", self.sharing.run)
        self._tasks.start("turn records", self.recorder.run)
        self._tasks.start("upkeep", self.upkeep.run)
        if self._settings.keys is not None:
            self._tasks.start("keys", self.access.run)
        if self._access_log is not None:
            self._tasks.start("access log", self._access_log.run)

    async def warm(self, deadline_s: float) -> None:
        """Wait until engines and shared sessions are known, at most `deadline_s`, so that the first clients
        of a process that replaces another one do not get 503."""
        known = (self.fleet.watch.synced.wait(), self.sharing.reached.wait())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*known), deadline_s)

    async def close(self) -> None:
        """Send what is pending, and let go of everything. Bounded."""
        counts.hand_over()
        await self.recorder.drain(2.0)
        await self._tasks.close()
        if self._access_log is not None:
            with contextlib.suppress(OSError):
                self._access_log.flush()
        self.cluster.close()
        await self._sessions_bus.close()
        await self.bus.close()
        await self.etcd.close()
