"""Turn records on their way to JetStream: a bounded buffer, oldest dropped first, sent in batches."""

import asyncio
import contextlib
import logging
from collections import deque
from itertools import islice

from controlplane.telemetry import metrics
from ppd.core import names, streams
from ppd.core.records import TurnRecord, encode
from ppd.runtime.bus import Bus, BusError
from ppd.runtime.streams import ensure

_BATCH = 256
_PAUSE_S = 0.25  # gathers a batch, and lets the engines' reports on a turn's KV come in


class Recorder:
    """Keeps records while NATS is away; each is acknowledged by JetStream or sent again."""

    def __init__(self, bus: Bus, namespace: str, max_records: int, logger: logging.Logger) -> None:
        self._bus = bus
        self._namespace = namespace
        self._log = logger
        self._pending: deque[TurnRecord] = deque()
        self._max = max_records
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()

    def add(self, record: TurnRecord) -> None:
        if len(self._pending) >= self._max:
            self._pending.popleft()
            metrics.RECORDS.labels("dropped").inc()
        self._pending.append(record)
        self._filled.set()

    def __len__(self) -> int:
        return len(self._pending)

    async def run(self) -> None:
        """For a Supervisor: raises on an outage; what was not acknowledged is kept."""
        await self._bus.connect()
        await ensure(self._bus, streams.turns(self._namespace))
        if self._pending:  # left behind by the run before
            self._filled.set()
        while True:
            await self._filled.wait()
            await asyncio.sleep(_PAUSE_S)
            self._filled.clear()
            while self._pending:
                await self._send()
            self._empty.set()

    async def drain(self, deadline_s: float) -> None:
        """Wait until all is sent, at most this many seconds."""
        if self._pending and self._bus.connected:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), deadline_s)

    async def _send(self) -> None:
        """One batch. JetStream takes what comes on one connection in order, so that the last record's
        acknowledgement stands for the batch; without it the whole batch is sent again, and the message ids
        make JetStream drop what it has already."""
        batch = list(islice(self._pending, _BATCH))
        *others, last = batch
        connection = self._bus.connections
        sent = self._bus.publish_all(
            (names.turns_subject(self._namespace, record.model), encode(record), _headers(record))
            for record in others
        )
        if not sent:
            raise BusError("NATS is away")
        await self._bus.sent()
        await self._bus.js.publish(
            names.turns_subject(self._namespace, last.model),
            encode(last),
            headers=_headers(last),
        )
        if self._bus.connections != connection:  # the others may have gone down with the one before
            return
        for record in batch:
            if self._pending and self._pending[0] is record:  # not dropped meanwhile
                self._pending.popleft()
        metrics.RECORDS.labels("sent").inc(len(batch))


def _headers(record: TurnRecord) -> dict[str, str]:
    return {"Nats-Msg-Id": record.request_id}
