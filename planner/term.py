"""One leader's term: tables for the placements that run, turns applied and acknowledged, tables improved."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import nats.errors
from nats.aio.msg import Msg

from planner.learners import Learners
from planner.metrics import LAG
from planner.placements import WantedPlacements, first_table
from planner.publishing import Publisher
from planner.settings import PlannerSettings
from planner.state import LearnerStore
from planner.tables import Tables
from planner.turns import MAX_UNACKED, Turns
from ppd.core.names import Role, load_subject, table_key
from ppd.core.records import BadRecordError, TableSnapshot, WorkerLoad, WorkerRecord, decode
from ppd.runtime.bus import Bus
from ppd.runtime.streams import TooLargeError

_REFRESH_S = 5.0
_CLOSE_DEADLINE_S = 2.0


class Term:
    """From taking over to losing the lead. `run` raises when NATS fails, to be run again."""

    def __init__(
        self,
        settings: PlannerSettings,
        bus: Bus,
        tables: Tables,
        wanted: WantedPlacements,
        workers: Callable[[], dict[str, WorkerRecord]],
        token: int,
        is_leader: Callable[[], bool],
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._tables = tables
        self._wanted = wanted
        self._workers = workers
        self._is_leader = is_leader
        self.turns = Turns(bus, settings.namespace, settings.turns_age_s, settings.turns_bytes)
        self._unacked: list[Msg] = []
        self.token = token
        self.learners = Learners(LearnerStore(bus, settings.namespace, logger), token, logger)
        self.publisher = Publisher(tables, settings.explore, settings.publish_s, logger)

    @property
    def lag(self) -> int:
        return self.turns.lag

    async def run(self, began: Callable[[], None]) -> None:
        """Returns when the lead is lost. What is in memory is kept for the next run after a failure.

        `began` is called once all could be opened.
        """
        await self._open()
        began()
        loads = await self._bus.nc.subscribe(self._load_subject(), cb=self._take_load)
        saved_s = refreshed_s = time.monotonic()
        try:
            while self._is_leader():
                for message in await self._fetch():
                    about = message.metadata
                    self.learners.take(message.data, about.sequence.stream, about.timestamp.timestamp())
                now_s = time.monotonic()
                if len(self._unacked) >= MAX_UNACKED // 2 or now_s - saved_s >= self._settings.checkpoint_s:
                    await self.save()
                    saved_s = now_s
                if now_s - refreshed_s >= _REFRESH_S:
                    await self._refresh()
                    refreshed_s = now_s
                await self._make_tables()
                for key, held in list(self.learners.held.items()):
                    await self.publisher.consider(key, held)
        finally:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await asyncio.wait_for(loads.unsubscribe(), _CLOSE_DEADLINE_S)
                await asyncio.wait_for(self.turns.close(), _CLOSE_DEADLINE_S)

    async def _fetch(self) -> list[Msg]:
        messages = await self.turns.fetch()
        self._unacked += messages
        LAG.set(self.turns.lag)
        return messages

    async def _open(self) -> None:
        self._unacked.clear()  # what was not acknowledged comes again
        await self._tables.open()
        await self.turns.open()
        await self.learners.claim(self.turns.stream_id)
        await self._refresh()

    async def _refresh(self) -> None:
        await self._tables.refresh()
        await self._tables.repair()
        for key, snapshot in list(self._tables.known.items()):
            held = self.learners.held.get(key)
            if held is None or held.learner is None:
                await self.learners.rebase(key, snapshot)

    async def save(self) -> None:
        """Save what was learned, then acknowledge the turns that it was learned from."""
        unacked, self._unacked = self._unacked, []
        await self.learners.save(self.turns.floor)
        await self.turns.ack(unacked)

    async def _make_tables(self) -> None:
        for model, placement in self._wanted.missing(
            self._tables.known, self._tables.models(), time.monotonic()
        ):
            with contextlib.suppress(TooLargeError):  # logged, and shown in `status`
                await self.publish_first(first_table(model, placement, self._tables.known.values()))

    async def publish_first(self, snapshot: TableSnapshot) -> TableSnapshot | None:
        """Publish a table that did not exist and learn relative to it; None if it did exist."""
        share = self.publisher.explore_share(None)
        made = await self._tables.create(snapshot, share)
        if made is not None:
            await self.learners.rebase(table_key(made.model, made.placement), made)
        return made

    def runs(self, snapshot: TableSnapshot) -> bool:
        """Whether a table is that of a placement that runs now."""
        placement = self._wanted.running().get(snapshot.model)
        return placement is not None and str(placement) == snapshot.placement

    def _load_subject(self) -> str:
        return load_subject(self._settings.namespace, "w").rpartition(".")[0] + ".*"

    async def _take_load(self, message: Msg) -> None:
        try:
            load = decode(message.data, WorkerLoad)
        except BadRecordError:
            return
        worker = self._workers().get(load.worker_id)
        if worker is not None and not load.silent_s and worker.role is Role.DECODE:
            placement = self._wanted.running().get(worker.model)
            load.worker_id = worker.name or worker.worker_id  # as turn records call it
            # Unix time: it is saved, and read by a planner on another host.
            self.learners.take_load(table_key(worker.model, str(placement)), load, time.time())
