"""Load reports: what the engine is busy with, four times a second."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from ppd.core.learning.prefill_speed import PrefillSpeed
from ppd.core.names import load_subject
from ppd.core.records import WorkerLoad, encode
from ppd.runtime.bus import Bus
from workers.engine.client import EngineClient, EngineError, EngineSilentError
from workers.engine.metrics import NAMES, EngineSample
from workers.health import Pulse
from workers.receiver import ReportReceiver

_EVERY_S = 0.25
_OF_LATE_S = 10.0
_SAID_FROM_S = 1.0  # a shorter silence is an engine that is busy

_log = logging.getLogger(__name__)


class LoadMeter:
    """Turns the engine's counters into rates over the last ten seconds."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._seq = 0
        self._last = WorkerLoad(worker_id=worker_id)
        self._past: deque[tuple[float, EngineSample]] = deque()
        self._speed = PrefillSpeed()

    def report(self, now_s: float, sample: EngineSample, queued_prefill_tokens: int | None) -> WorkerLoad:
        """The report for `sample`, taken at `now_s` of a monotonic clock.

        `queued_prefill_tokens` is the connector's count; without a connector (None) it is estimated by the
        waiting requests and the recent mean of what a request's prefill computed.
        """
        if self._past and sample.steps < self._past[-1][1].steps:
            self._past.clear()  # the engine started anew
        if self._past:
            last = self._past[-1][1]
            self._speed.observe(
                int(sample.prefills - last.prefills),
                sample.request_prefill_tokens - last.request_prefill_tokens,
                sample.prefill_s - last.prefill_s,
            )
        self._past.append((now_s, sample))
        while now_s - self._past[0][0] > _OF_LATE_S and len(self._past) > 2:
            self._past.popleft()
        then_s, then = self._past[0]
        took_s = now_s - then_s
        prefilled = sample.prefill_tokens - then.prefill_tokens
        answered = sample.ttft_count - then.ttft_count
        if queued_prefill_tokens is None:
            queued_prefill_tokens = int(sample.waiting * _ratio(prefilled, answered))
        self._seq += 1
        self._last = WorkerLoad(
            worker_id=self._worker_id,
            seq=self._seq,
            running=int(sample.running),
            waiting=int(sample.waiting),
            kv_use=sample.kv_use,
            queued_prefill_tokens=queued_prefill_tokens,
            prefix_hit_rate=_ratio(
                sample.prefix_hits - then.prefix_hits, sample.prefix_queries - then.prefix_queries
            ),
            itl_ms=1e3 * _ratio(sample.itl_s - then.itl_s, sample.itl_count - then.itl_count),
            ttft_ms=1e3 * _ratio(sample.ttft_s - then.ttft_s, answered),
            tpot_ms=1e3 * _ratio(sample.tpot_s - then.tpot_s, sample.tpot_count - then.tpot_count),
            prefill_tokens_per_s=_ratio(prefilled, took_s),
            prefill_speed_tokens_per_s=self._speed.tokens_per_s,
            decode_tokens_per_s=_ratio(sample.generation_tokens - then.generation_tokens, took_s),
            preemptions=int(sample.preemptions),
        )
        return self._last

    def of_silence(self, silent_s: float) -> WorkerLoad:
        """The last report, and for how long there has been no other."""
        self._seq += 1
        return replace(self._last, seq=self._seq, silent_s=silent_s)


class LoadReports:
    """Reads the engine's metrics, shows them to `saw`, and publishes a report of each reading; reports go on
    while the engine does not answer, and say so."""

    def __init__(
        self,
        namespace: str,
        worker_id: str,
        engine: EngineClient,
        bus: Bus,
        reports: ReportReceiver,
        saw: Callable[[EngineSample], None],
    ) -> None:
        self._subject = load_subject(namespace, worker_id)
        self._meter = LoadMeter(worker_id)
        self._engine = engine
        self._bus = bus
        self._reports = reports
        self._saw = saw
        self._pulse = Pulse()

    async def run(self) -> None:
        """For ever; whether the engine must be given up is for the health check to judge."""
        while True:
            began_s = time.monotonic()
            try:
                sample = EngineSample.parse(await self._read())
            except EngineSilentError:
                await self._silence()
            except (EngineError, ValueError) as error:
                self._pulse.silent_s = 0.0
                _log.debug("no load report: %s", error)
            else:
                self._saw(sample)
                self._pulse.answered(sample, _EVERY_S)
                load = self._meter.report(time.monotonic(), sample, self._reports.queued_prefill_tokens)
                load.stuck_s = self._pulse.stuck_s
                load.dropped_reports = self._reports.dropped
                await self._publish(load)
            await asyncio.sleep(max(0.05, began_s + _EVERY_S - time.monotonic()))

    async def _read(self) -> str:
        reading = asyncio.ensure_future(self._engine.metrics(NAMES))
        try:
            while not (await asyncio.wait({reading}, timeout=_EVERY_S))[0]:
                await self._silence()
            return await reading
        finally:
            reading.cancel()

    async def _silence(self) -> None:
        """A quarter of a second in which it did not answer."""
        self._pulse.missed(_EVERY_S)
        if self._pulse.silent_s >= _SAID_FROM_S:
            await self._publish(self._meter.of_silence(self._pulse.silent_s))

    async def _publish(self, load: WorkerLoad) -> None:
        await self._bus.publish(self._subject, encode(load), "load")


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
