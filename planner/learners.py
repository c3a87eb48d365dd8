"""Every table's learner, each turn taken in once, saved before it is acknowledged."""

import logging

from planner.metrics import DRIFT, TURNS
from planner.state import LearnerStore, SavedState, prior_key, state_key
from planner.tables import MAX_TABLES
from ppd.core.learning.applied import Applied
from ppd.core.learning.learner import Learner
from ppd.core.learning.samples import Unfit
from ppd.core.names import table_key
from ppd.core.records import BadRecordError, Record, TableSnapshot, TurnRecord, WorkerLoad, decode
from ppd.core.table import Table, TableError
from ppd.runtime.streams import TooLargeError


class Held:
    """One table's learner in memory: what was saved last, and what came since."""

    def __init__(self, saved: SavedState, stream_id: str) -> None:
        self.saved = saved
        self.stream_id = stream_id
        self.applied = Applied(saved.applied if saved.stream_id == stream_id else ())
        self.turns = saved.turns
        self.policy = ""  # by which the newest turn was routed; empty = none came yet
        self.learns_after = saved.learns_after if saved.stream_id == stream_id else 0
        self.prior: TableSnapshot | None = None
        self.learner: Learner | None = None  # None until there is a table to be relative to
        self.dirty = False  # there is something to save
        self.fresh = False  # there is something that was not considered for publication

    def adopt(self, prior: TableSnapshot) -> None:
        """Learn relative to `prior`. Raises TableError."""
        learned = self.learner.learned if self.learner else self.saved.learned
        self.learner = Learner(Table(prior), learned)
        self.prior, self.dirty = prior, True

    def snapshot(self, token: int, stream_id: str) -> SavedState:
        return SavedState(
            model=self.saved.model,
            placement=self.saved.placement,
            token=token,
            stream_id=stream_id,
            applied=tuple(self.applied.ranges) if stream_id == self.stream_id else (),
            turns=self.turns,
            learns_after=self.learns_after if stream_id == self.stream_id else 0,
            learned=self.learner.learned if self.learner else self.saved.learned,
        )


class Learners:
    """All of them, for one leader under its token. Writes raise FencedError once another has taken over."""

    def __init__(self, store: LearnerStore, token: int, logger: logging.Logger) -> None:
        self._store = store
        self._token = token
        self._log = logger
        self._stream_id = ""
        self.held: dict[str, Held] = {}
        self.too_large: dict[str, str] = {}  # key of the bucket -> why it cannot be saved

    async def claim(self, stream_id: str) -> None:
        """Take over what is saved, so that a former leader cannot write it any more; write back what only
        memory has.

        Only for a planner that leads: that the last to claim is the leader is all that is relied on. Tokens
        are not compared, since they begin anew when etcd loses its data.
        `stream_id` tells streams apart: the sequence numbers of one that was lost mean nothing in the next.
        """
        self._stream_id = stream_id
        await self._store.open()
        for key in sorted({*await self._store.tables(), *self.held}):
            known = self._store.revision(state_key(key))
            saved = await self._store.read(state_key(key), SavedState)
            mine = self.held.get(key)
            if saved is not None and (mine is None or self._store.revision(state_key(key)) != known):
                mine = Held(saved, stream_id)
            elif mine is None:
                continue
            elif mine.stream_id != stream_id:
                prior, mine = mine.prior, Held(mine.snapshot(self._token, stream_id), stream_id)
                mine.prior = prior
            self.held[key] = mine
            await self._claim_prior(key, mine)
            await self._save(key, mine)

    async def _claim_prior(self, key: str, mine: Held) -> None:
        prior = await self._store.read(prior_key(key), TableSnapshot)
        if prior is None and mine.prior is not None:
            await self._write(prior_key(key), mine.prior)
        prior = prior or mine.prior
        if prior is not None and mine.learner is None:
            try:
                mine.adopt(prior)
            except TableError as error:
                self._log.error("the prior of %s is refused, learning starts anew: %s", key, error)

    async def rebase(self, key: str, prior: TableSnapshot, after: int = 0) -> None:
        """Learn relative to `prior`, from the stream's messages after sequence number `after`; what was
        learned against another prior is dropped."""
        held = self.held.get(key)
        if held is None:
            if len(self.held) >= MAX_TABLES:
                return
            state = SavedState(model=prior.model, placement=prior.placement, token=self._token)
            held = self.held[key] = Held(state, self._stream_id)
        held.adopt(prior)
        held.learns_after = after
        await self._write(prior_key(key), prior)
        await self._save(key, held)

    def take(self, data: bytes, sequence: int, at_s: float) -> None:
        """One message of the stream, stored there at `at_s` (Unix time); may be acknowledged in any case."""
        try:
            record = decode(data, TurnRecord)
        except BadRecordError as error:
            TURNS.labels("unreadable").inc()
            self._log.debug("a turn record cannot be read: %s", error)
            return
        key = table_key(record.model, record.placement)
        held = self.held.get(key)
        if held is None:
            if len(self.held) >= MAX_TABLES:
                TURNS.labels("refused").inc()
                return
            state = SavedState(model=record.model, placement=record.placement, token=self._token)
            held = self.held[key] = Held(state, self._stream_id)
        if not held.applied.add(sequence):
            TURNS.labels("duplicate").inc()
            return
        held.turns += 1
        held.policy = record.policy or held.policy
        held.dirty = held.fresh = True
        if sequence <= held.learns_after:
            TURNS.labels("before-rebuild").inc()
        else:
            TURNS.labels(_learn(held, record, at_s)).inc()

    def take_load(self, key: str, load: WorkerLoad, now_s: float) -> None:
        """A decode worker's report, for the table of the placement that it is part of."""
        held = self.held.get(key)
        if held is not None and held.learner is not None:
            held.learner.observe_load(load, now_s)

    async def save(self, floor: int) -> None:
        """Save what is new; all of the stream up to `floor` is acknowledged."""
        for key, held in list(self.held.items()):
            if held.dirty:
                held.applied.prune(floor)
                await self._save(key, held)

    async def _save(self, key: str, held: Held) -> None:
        state = held.snapshot(self._token, self._stream_id)
        held.dirty = False
        try:
            if await self._write(state_key(key), state):
                held.saved = state
        except BaseException:
            held.dirty = True
            raise

    async def _write(self, name: str, record: Record) -> bool:
        """False for one that is too large: it goes on in memory, its turns are acknowledged, and a restart
        forgets them."""
        try:
            await self._store.write(name, record)
        except TooLargeError as error:
            if name not in self.too_large:
                self._log.error("cannot save %s", error)
            self.too_large[name] = str(error)
            return False
        self.too_large.pop(name, None)
        return True


def _learn(held: Held, record: TurnRecord, at_s: float) -> str:
    if held.learner is None:
        return "no-table"
    was_drifting = held.learner.learned.drifting_until
    sample = held.learner.observe(record, at_s)
    if held.learner.learned.drifting_until != was_drifting:
        DRIFT.labels(record.path).inc()
    return sample.value if isinstance(sample, Unfit) else "applied"
