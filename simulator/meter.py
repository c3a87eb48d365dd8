"""Load reports of simulated engines, as the worker's agent makes them: rates over the last ten seconds.

The prefill speed is the slope of steps' times over their prompt tokens, as there: what else a step does, such
as decoding, is no prefill.
"""

from collections import deque
from typing import NamedTuple

from ppd.core.decision import WorkerView
from ppd.core.learning.regression import Regression
from ppd.core.names import Role
from ppd.core.records import WorkerLoad
from simulator.cluster import Worker

_OF_LATE_S = 10.0
_KEEP = 0.98  # of fifty reports with prefill in them
_ENOUGH = 8.0


class _Counters(NamedTuple):
    at_s: float
    itl_s: float
    itl_count: int
    prefilled: int
    prefill_steps: int
    prefill_busy_s: float
    generated: int


class Meter:
    """One worker as the frontend sees it: its last report, corrected by what was dispatched since."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.running = 0  # dispatched and not over
        self.prefill_tokens = 0  # dispatched and not computed
        self.unsent_kv_tokens = 0  # dispatched to this P and not on a D yet
        self._running_then = 0
        self._prefill_then = 0
        self._past: deque[_Counters] = deque()
        self._speed = Regression.empty(2)
        self._load = WorkerLoad(worker_id=worker.name)

    def report(self, now_s: float) -> WorkerLoad:
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
            self._observe_speed(self._past[-1], now)
        self._past.append(now)
        while now_s - self._past[0].at_s > _OF_LATE_S and len(self._past) > 2:
            self._past.popleft()
        then = self._past[0]
        took_s = now_s - then.at_s
        prefilled = now.prefilled - then.prefilled
        self._running_then, self._prefill_then = self.running, self.prefill_tokens
        self._load = WorkerLoad(
            worker_id=self.worker.name,
            running=engine.running,
            waiting=engine.waiting,
            kv_use=engine.kv_use,
            queued_prefill_tokens=engine.queued_prefill_tokens,
            itl_ms=1e3 * _ratio(now.itl_s - then.itl_s, now.itl_count - then.itl_count),
            prefill_tokens_per_s=_ratio(prefilled, took_s),
            prefill_speed_tokens_per_s=self._prefill_speed(),
            decode_tokens_per_s=_ratio(now.generated - then.generated, took_s),
            preemptions=engine.preempted,
        )
        return self._load

    def _observe_speed(self, then: _Counters, now: _Counters) -> None:
        steps = now.prefill_steps - then.prefill_steps
        if steps:
            tokens = now.prefilled - then.prefilled
            self._speed.observe((steps, tokens), now.prefill_busy_s - then.prefill_busy_s, _KEEP)

    def _prefill_speed(self) -> float:
        if self._speed.n < _ENOUGH:
            return 0.0
        s_per_token = self._speed.solve()[1]
        return 1 / s_per_token if s_per_token > 1e-7 else 0.0

    def view(self, now_s: float) -> WorkerView:
        load = self._load
        return WorkerView(
            self.worker.name,
            running=max(0, load.running + self.running - self._running_then),
            waiting=load.waiting,
            kv_use=load.kv_use,
            queued_prefill_tokens=max(
                0, load.queued_prefill_tokens + self.prefill_tokens - self._prefill_then
            ),
            itl_ms=load.itl_ms,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            prefill_speed_tokens_per_s=load.prefill_speed_tokens_per_s,
            max_batch_tokens=self.worker.engine.config.max_batch_tokens,
            unsent_kv_tokens=self.unsent_kv_tokens,
            age_s=now_s - self._past[-1].at_s if self._past else 1e9,
        )

    @property
    def decodes(self) -> bool:
        return self.worker.role is Role.DECODE


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
