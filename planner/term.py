"""One leader's term: tables for the placements that run, and the turns applied and acknowledged."""

import asyncio
import logging
import time
from collections.abc import Callable

from nats.aio.msg import Msg

from planner.metrics import LAG, TABLE_VERSION, TURNS
from planner.placements import Wanted
from planner.settings import PlannerSettings
from planner.state import FencedError, Learner, LearnerStore, SavedState
from planner.tables import MAX_TABLES, Tables
from planner.turns import MAX_UNACKED, Turns
from ppd.core import seeds
from ppd.core.names import SESSIONS_BUCKET, stream_name, table_key
from ppd.core.records import BadRecordError, TurnRecord, decode
from ppd.runtime.bus import Bus

_REFRESH_S = 5.0
_SESSIONS_TTL_S = 3600.0


class Term:
    """From taking over to losing the lead. `run` raises when NATS fails, to be begun again."""

    def __init__(
        self,
        settings: PlannerSettings,
        bus: Bus,
        tables: Tables,
        wanted: Wanted,
        token: int,
        is_leader: Callable[[], bool],
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._tables = tables
        self._wanted = wanted
        self._token = token
        self._is_leader = is_leader
        self._log = logger
        self._store = LearnerStore(bus, settings.namespace, logger)
        self._turns = Turns(bus, settings.namespace, settings.turns_age_s, settings.turns_bytes)
        self._unacked: list[Msg] = []
        self.learners: dict[str, Learner] = {}

    @property
    def token(self) -> int:
        return self._token

    @property
    def lag(self) -> int:
        return self._turns.lag

    async def run(self) -> None:
        """Returns when the lead is lost. May be run again after a failure: what is in memory is kept."""
        await self._open()
        saved_s = refreshed_s = time.monotonic()
        try:
            while self._is_leader():
                self._apply(await self._turns.fetch())
                LAG.set(self._turns.lag)
                now_s = time.monotonic()
                if len(self._unacked) >= MAX_UNACKED // 2 or now_s - saved_s >= self._settings.checkpoint_s:
                    await self.save()
                    saved_s = now_s
                if now_s - refreshed_s >= _REFRESH_S:
                    await self._refresh()
                    refreshed_s = now_s
                await self._make_tables()
        finally:
            await asyncio.wait_for(self._turns.close(), 2)

    async def _open(self) -> None:
        self._unacked.clear()  # what was not acknowledged comes again
        await self._tables.open()
        await self._bus.kv(stream_name(SESSIONS_BUCKET, self._settings.namespace), ttl_s=_SESSIONS_TTL_S)
        await self._refresh()
        await self._turns.open()
        await self._store.open()
        await self._claim()

    async def _refresh(self) -> None:
        await self._tables.refresh()
        await self._tables.repair()
        for key, snapshot in self._tables.known.items():
            TABLE_VERSION.labels(key).set(snapshot.version)

    async def _claim(self) -> None:
        """Take over every learner that is saved, and write back those that only memory has."""
        for key in {*await self._store.keys(), *self.learners}:
            saved = await self._store.read(key)
            if saved is not None and saved.token > self._token:
                raise FencedError(f"{key} was claimed under token {saved.token}, after {self._token}")
            mine = self.learners.get(key)
            if saved is not None and (mine is None or saved != mine.saved):
                mine = Learner(saved, self._turns.stream_id)
            elif mine is None:
                continue
            elif mine.stream_id != self._turns.stream_id:
                mine = Learner(mine.snapshot(self._token), self._turns.stream_id)
            self.learners[key] = mine
            await self._save_one(key, mine)

    def _apply(self, messages: list[Msg]) -> None:
        for message in messages:
            self._apply_one(message)
        self._unacked += messages

    def _apply_one(self, message: Msg) -> None:
        try:
            record = decode(message.data, TurnRecord)
        except BadRecordError as error:
            TURNS.labels("unreadable").inc()
            self._log.debug("a turn record cannot be read: %s", error)
            return
        key = table_key(record.model, record.placement)
        learner = self.learners.get(key)
        if learner is None:
            if len(self.learners) >= MAX_TABLES:
                TURNS.labels("refused").inc()
                return
            state = SavedState(model=record.model, placement=record.placement, token=self._token)
            learner = self.learners[key] = Learner(state, self._turns.stream_id)
        if not learner.applied.add(message.metadata.sequence.stream):
            TURNS.labels("duplicate").inc()
            return
        learner.turns += 1
        learner.dirty = True
        TURNS.labels("applied").inc()

    async def save(self) -> None:
        """Save what was learned, then acknowledge the turns that it was learned from."""
        for key, learner in self.learners.items():
            if learner.dirty:
                learner.applied.prune(self._turns.floor)
                await self._save_one(key, learner)
        unacked, self._unacked = self._unacked, []
        await self._turns.ack(unacked)

    async def _save_one(self, key: str, learner: Learner) -> None:
        state = learner.snapshot(self._token)
        await self._store.write(key, state)
        learner.saved, learner.dirty = state, False

    async def _make_tables(self) -> None:
        for model, placement in self._wanted.missing(
            self._tables.known, self._tables.models(), time.monotonic()
        ):
            await self._tables.create(seeds.nearest(placement, model))
