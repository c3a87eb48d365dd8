"""Load reports of simulated engines, as the worker's agent makes them: rates over the last ten seconds.

The prefill speed is the slope of steps' times over their prompt tokens, as there: what else a step does, such
as decoding, is no prefill.
"""

from collections import deque
from typing import NamedTuple

from ppd.core.learning.prefill_speed import PrefillSpeed
from ppd.core.load import LoadTracker
from ppd.core.names import Role
from ppd.core.records import WorkerLoad
from simulator.cluster import SimWorker

_OF_LATE_S = 10.0


class _Counters(NamedTuple):
    at_s: float
    itl_s: float
    itl_count: int
    prefilled: int
    prefill_steps: int
    prefill_busy_s: float
    generated: int


class Meter(LoadTracker):
    """One worker as the frontend sees it; it makes the worker's load reports itself."""

    def __init__(self, worker: SimWorker) -> None:
        super().__init__(worker.name)
        self.worker = worker
        self.max_batch_tokens = worker.engine.config.max_batch_tokens
        self._past: deque[_Counters] = deque()
        self._speed = PrefillSpeed()

    def measure(self, now_s: float) -> WorkerLoad:
        engine = self.worker.engine
        now = _Counters(
            now_s,
            engine.itl_s,
            engine.itl_count,
            engine.prefilled_tokens,
            engine.prefill_steps,
            engine.prefill_busy_s,
            engine.generated_tokens,
        )
        if self._past:
            last = self._past[-1]
            self._speed.observe(
                now.prefill_steps - last.prefill_steps,
                now.prefilled - last.prefilled,
                now.prefill_busy_s - last.prefill_busy_s,
            )
        self._past.append(now)
        while now_s - self._past[0].at_s > _OF_LATE_S and len(self._past) > 2:
            self._past.popleft()
        then = self._past[0]
        took_s = now_s - then.at_s
        prefilled = now.prefilled - then.prefilled
        load = WorkerLoad(
            worker_id=self.worker.name,
            running=engine.running,
            waiting=engine.waiting,
            kv_use=engine.kv_use,
            queued_prefill_tokens=engine.queued_prefill_tokens,
            itl_ms=1e3 * _ratio(now.itl_s - then.itl_s, now.itl_count - then.itl_count),
            prefill_tokens_per_s=_ratio(prefilled, took_s),
            prefill_speed_tokens_per_s=self._speed.tokens_per_s,
            decode_tokens_per_s=_ratio(now.generated - then.generated, took_s),
            preemptions=engine.preempted,
        )
        self.report(load, now_s)
        return load

    @property
    def decodes(self) -> bool:
        return self.worker.role is Role.DECODE


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
