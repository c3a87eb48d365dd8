"""The engines' reports on KV: what each turn moved, and what a D holds for a pull-back."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from nats.aio.msg import Msg

from controlplane.telemetry import metrics
from ppd.core import names
from ppd.core.records import BadRecordError, KvHeld, KvMoved, TurnRecord, decode
from ppd.core.sessions import Pullback, Session
from ppd.runtime.bus import Bus

_MAX_OPEN = 16_384
_MAX_CLOSED = 4_096  # a report follows the end of its turn within a second; a record has 1 kB
_MARGIN_S = 5.0  # held KV counts as gone so long before it expires, since P has yet to be asked
_LATE_S = 0.1  # a client that asks on at once may overtake D's report of the turn before


_Holder = tuple[Session, int, str]  # the key that its next turn must extend, and its D
V = TypeVar("V")


def _put(bounded: OrderedDict[str, V], key: str, value: V, at_most: int = _MAX_OPEN) -> None:
    bounded[key] = value
    if len(bounded) > at_most:
        bounded.popitem(last=False)


def _keep(holder: _Holder, pullback: Pullback) -> None:
    """Give the session its pull-back, unless it has moved on or another incarnation holds the KV."""
    session, after, decode_worker = holder
    if decode_worker == pullback.decode_worker and session.marks and session.marks[-1].after == after:
        session.pullback = pullback._replace(after=after)


class Moved:
    """The transfers of one turn. Ranks move their parts in parallel; a pull-back and a hand-off follow each
    other.
    """

    __slots__ = ("_bytes", "_longest_s", "error")

    def __init__(self) -> None:
        self.error = ""
        self._bytes: dict[str, int] = {}  # by direction
        self._longest_s: dict[str, float] = {}

    @property
    def bytes(self) -> int:
        return sum(self._bytes.values())

    @property
    def seconds(self) -> float:
        return sum(self._longest_s.values())

    @property
    def needless(self) -> list[str]:
        """Directions in which nothing had to move, since it was all there."""
        return [] if self.error else [each for each, size_bytes in self._bytes.items() if not size_bytes]

    def add(self, moved: KvMoved) -> None:
        self.error = self.error or moved.error
        self._bytes[moved.direction] = self._bytes.get(moved.direction, 0) + moved.bytes
        self._longest_s[moved.direction] = max(self._longest_s.get(moved.direction, 0.0), moved.transfer_s)


class Transfers:
    """Matches the engines' reports with turns by request id. Bounded; late reports count too."""

    def __init__(
        self, bus: Bus, namespace: str, on_report: Callable[[KvMoved], None], logger: logging.Logger
    ) -> None:
        self._on_report = on_report
        self._bus = bus
        self._namespace = namespace
        self._log = logger
        self._moved: OrderedDict[str, Moved] = OrderedDict()
        self._records: OrderedDict[str, TurnRecord] = OrderedDict()  # closed, and perhaps not sent yet
        self._holders: OrderedDict[str, _Holder] = OrderedDict()
        self._wanted: OrderedDict[str, str] = OrderedDict()  # the D that was asked last to read a turn's KV
        self._early: OrderedDict[str, Pullback] = OrderedDict()
        self._awaited: OrderedDict[str, asyncio.Event] = OrderedDict()  # D's reports, by session

    def moved_by(self, request_id: str) -> Moved | None:
        """What a turn moved, as far as reports have come."""
        return self._moved.get(request_id)

    def expect(self, request_id: str, decode_worker: str) -> None:
        """A D was asked to read this turn's KV."""
        _put(self._wanted, request_id, decode_worker)

    def called_off(self, request_id: str) -> None:
        """This frontend gave the turn up: a failure of its transfer is no evidence against the pair."""
        self._wanted.pop(request_id, None)

    def wanted(self, request_id: str, decode_worker: str) -> bool:
        """Whether this frontend asked that D for the turn's transfer and has not called it off. Each
        frontend judges its own turns, since only it knows which it gave up.
        """
        return self._wanted.get(request_id) == decode_worker

    def closed(self, record: TurnRecord) -> None:
        """Keep the record for a while: a report for it may still come."""
        _put(self._records, record.request_id, record, _MAX_CLOSED)

    def expect_hold(self, request_id: str, session: Session, after: int, decode_worker: str) -> None:
        """D was asked to hold this turn's KV for the session's next turn."""
        holder = (session, after, decode_worker)
        early = self._early.pop(request_id, None)
        if early is None:
            _put(self._holders, request_id, holder)
            _put(self._awaited, session.id, asyncio.Event())
        else:
            _keep(holder, early)

    async def until_held(self, session: Session) -> None:
        """Wait, for a short time at most, for D's report on the session's last turn if one is expected."""
        report = self._awaited.get(session.id)
        if report is not None:
            try:
                await asyncio.wait_for(report.wait(), _LATE_S)
            except TimeoutError:
                self._awaited.pop(session.id, None)

    def on_moved(self, moved: KvMoved) -> None:
        metrics.KV_BYTES.labels("moved").inc(moved.bytes)
        if moved.error:
            metrics.KV_FAILED.labels(moved.direction if moved.direction in ("p-d", "d-p") else "other").inc()
        self._on_report(moved)
        found = self._moved.get(moved.request_id)
        if found is None:
            found = Moved()
            _put(self._moved, moved.request_id, found)
        found.add(moved)
        record = self._records.get(moved.request_id)
        if record is not None:
            record.kv_bytes, record.kv_transfer_ms = found.bytes, found.seconds * 1e3

    def on_held(self, held: KvHeld, now_s: float) -> None:
        pullback = Pullback(dict(held.params), 0, held.worker_id, now_s + held.hold_s - _MARGIN_S)
        holder = self._holders.pop(held.request_id, None)
        if holder is None:  # the report came before the turn was closed
            _put(self._early, held.request_id, pullback)
        else:
            _keep(holder, pullback)
            if report := self._awaited.pop(holder[0].id, None):
                report.set()

    async def run(self) -> None:
        """For a Supervisor."""
        await self._bus.connect()
        clock = asyncio.get_running_loop().time

        async def moved(message: Msg) -> None:
            try:
                self.on_moved(decode(message.data, KvMoved))
            except BadRecordError as error:
                self._log.debug("ignoring a report of moved KV: %s", error)

        async def held(message: Msg) -> None:
            try:
                self.on_held(decode(message.data, KvHeld), clock())
            except BadRecordError as error:
                self._log.debug("ignoring a report of held KV: %s", error)

        nc = self._bus.nc
        subscriptions = [
            await nc.subscribe(names.kv_moved_subject(self._namespace, "*"), cb=moved),
            await nc.subscribe(names.kv_held_subject(self._namespace, "*"), cb=held),
        ]
        try:
            await asyncio.Event().wait()
        finally:
            for subscription in subscriptions:
                await subscription.unsubscribe()
