"""Load reports of simulated engines, as the worker's agent makes them: rates over the last ten seconds."""

from collections import deque
from typing import NamedTuple

from ppd.core.decision import WorkerView
from ppd.core.names import Role
from ppd.core.records import WorkerLoad
from simulator.cluster import Worker

_OF_LATE_S = 10.0


class _Counters(NamedTuple):
    at_s: float
    itl_s: float
    itl_count: int
    prefilled: int
    prefill_busy_s: float
    generated: int


class Meter:
    """One worker as the frontend sees it: its last report, corrected by what was dispatched since."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.running = 0  # dispatched and not over
        self.prefill_tokens = 0  # dispatched and not computed
        self._running_then = 0
        self._prefill_then = 0
        self._past: deque[_Counters] = deque()
        self._load = WorkerLoad(worker_id=worker.name)

    def report(self, now_s: float) -> WorkerLoad:
        engine = self.worker.engine
        now = _Counters(
            now_s,
            engine.itl_s,
            engine.itl_count,
            engine.prefilled_tokens,
            engine.prefill_busy_s,
            engine.generated_tokens,
        )
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
            prefill_speed_tokens_per_s=_ratio(prefilled, now.prefill_busy_s - then.prefill_busy_s),
            decode_tokens_per_s=_ratio(now.generated - then.generated, took_s),
            preemptions=engine.preempted,
        )
        return self._load

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
            age_s=now_s - self._past[-1].at_s if self._past else 1e9,
        )

    @property
    def decodes(self) -> bool:
        return self.worker.role is Role.DECODE


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
