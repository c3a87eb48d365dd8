"""The planner put together: stands by until it leads, then runs its term."""

import asyncio
import logging
import os
import socket
import time
import uuid
from typing import Any

import nats.errors

from planner.api import Api, Handler, NotLeadingError
from planner.http import Http
from planner.metrics import LEADER
from planner.newest_versions import NewestVersions
from planner.operations import Operations
from planner.placements import WantedPlacements
from planner.report import describe_learner, describe_table
from planner.settings import PlannerSettings
from planner.state import FencedError
from planner.tables import Tables
from planner.term import Term
from ppd.core.records import WorkerRecord
from ppd.runtime.bus import Bus
from ppd.runtime.election import Election
from ppd.runtime.etcd import Etcd, EtcdError
from ppd.runtime.registry import WorkerWatch
from ppd.runtime.tasks import Supervisor, backoff_s

_STANDBY_POLL_S = 0.5
_STANDBY_REFRESH_S = 5.0
_TERM_BACKOFF_S = 2.0


class Planner:
    def __init__(self, settings: PlannerSettings, logger: logging.Logger) -> None:
        self._settings = settings
        self._log = logger
        self.planner_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._etcd = Etcd(settings.etcd)
        self._bus = Bus(settings.nats, f"ppd-planner {self.planner_id}", logger)
        self._election = Election(self._etcd, settings.namespace, self.planner_id, logger=logger)
        self._wanted = WantedPlacements(settings.settle_s)
        self._watch = WorkerWatch(self._etcd, settings.namespace, self._see_workers, logger)
        newest = NewestVersions(self._etcd, settings.namespace, logger)
        self._tables = Tables(self._bus, newest, settings.namespace, logger)
        self._api = Api(settings.namespace, self.planner_id, logger)
        self._http = Http(self._missing)
        self._term: Term | None = None
        self._trouble = ""  # what stopped the term or the standby last; empty while it goes well

    def _see_workers(self, workers: dict[str, WorkerRecord]) -> None:
        self._wanted.see(workers.values(), time.monotonic())

    def _missing(self) -> str:
        """Why it is not ready; a standby is ready once it can take over."""
        if not self._bus.connected:
            return "NATS is away"
        if not self._watch.connected:
            return "etcd is away"
        learners = self._term.learners.too_large if self._term else {}
        return self._trouble or "; ".join((*self._tables.too_large.values(), *learners.values()))

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; then save, and let another planner lead at once. Raises OSError: port taken."""
        port = await self._http.start(self._settings.host, self._settings.port)
        self._log.info(
            "planner %s: metrics on http://%s:%d/metrics", self.planner_id, self._settings.host, port
        )
        tasks = Supervisor(self._log)
        tasks.start("election", self._election.run)
        tasks.start("workers", self._watch.run)
        tasks.start("term", self._serve)
        try:
            await stop.wait()
        finally:
            await self._close(tasks)

    async def _close(self, tasks: Supervisor) -> None:
        await tasks.stop("term")
        if self._term is not None and self._election.is_leader and self._bus.connected:
            try:
                await asyncio.wait_for(self._term.save(), 3)
            except Exception as error:
                self._log.warning("could not save at the end, the turns come again: %s", error)
        await tasks.close()
        await self._election.close()
        await self._api.close()
        await self._bus.close()
        await self._etcd.close()
        await self._http.close()

    async def _serve(self) -> None:
        """For the Supervisor: stands by and leads in turn; raises when a standby cannot read the tables."""
        await self._bus.connect()
        try:
            while True:
                await (self._lead() if self._election.is_leader else self._stand_by())
        except nats.errors.Error as error:
            self._trouble = f"JetStream: {error}"
            raise

    async def _stand_by(self) -> None:
        self._term = None
        LEADER.set(0)
        await self._api.open(self._bus.nc, self._own_handlers(), {"role": "standby"})
        try:
            await self._tables.open()
            refreshed_s = -_STANDBY_REFRESH_S
            while not self._election.is_leader:
                if time.monotonic() - refreshed_s >= _STANDBY_REFRESH_S:
                    await self._tables.refresh()
                    refreshed_s, self._trouble = time.monotonic(), ""
                await asyncio.sleep(_STANDBY_POLL_S)
        finally:
            await self._api.close()

    async def _lead(self) -> None:
        """Lead until the lead is lost, beginning the term again after each failure of JetStream."""
        term = self._term = Term(
            self._settings,
            self._bus,
            self._tables,
            self._wanted,
            lambda: self._watch.workers,
            self._election.token,
            lambda: self._leads(term),
            self._log,
        )
        LEADER.set(1)
        operations = Operations(self._tables, term, self.status).handlers()
        led = {verb: self._while_leading(term, handler) for verb, handler in operations.items()}
        await self._api.open(self._bus.nc, led | self._own_handlers(), {"role": "leader"})
        try:
            waits = backoff_s()
            while self._leads(term):
                await self._bus.connect()
                try:
                    await term.run(self._no_trouble)
                except (nats.errors.Error, TimeoutError) as error:
                    self._trouble = f"JetStream: {str(error) or type(error).__name__}"
                    self._log.warning("the term is interrupted: %s", self._trouble)
                except EtcdError as error:
                    self._trouble = str(error)
                    self._log.warning("the term is interrupted: %s", error)
                except FencedError as error:
                    self._log.error("giving way: %s", error)
                    term.learners.held.clear()
                await asyncio.sleep(min(next(waits), _TERM_BACKOFF_S))
        finally:
            await self._api.close()

    def _leads(self, term: Term) -> bool:
        return self._election.is_leader and self._election.token == term.token

    def _while_leading(self, term: Term, handler: Handler) -> Handler:
        """Keeps a leader that slept through its succession from doing what it was asked meanwhile."""

        async def guarded(data: bytes) -> Any:
            if not self._leads(term):
                raise NotLeadingError
            return await handler(data)

        return guarded

    def _no_trouble(self) -> None:
        self._trouble = ""

    def _own_handlers(self) -> dict[str, Handler]:
        """What every planner answers under its own name, whether it leads or not."""
        return {f"status.{self.planner_id}": self._status_now}

    async def _status_now(self, _: bytes) -> dict[str, Any]:
        return self.status()

    def status(self) -> dict[str, Any]:
        """The truth about this planner, for `status` and for people."""
        term = self._term
        held = term.learners.held if term else {}
        return {
            "planner": self.planner_id,
            "role": "leader" if self._election.is_leader else "standby",
            "leader": self._election.leader,
            "token": self._election.token,
            "etcd": self._watch.connected,
            "nats": self._bus.connected,
            "trouble": self._missing(),
            "placements": {model: str(placement) for model, placement in self._wanted.running().items()},
            "turns": sum(each.turns for each in held.values()),
            "lag": term.lag if term else 0,
            "refused_tables": dict(self._tables.problems),
            "tables": [
                describe_table(snapshot) | describe_learner(held.get(key))
                for key, snapshot in sorted(self._tables.known.items())
            ],
        }
