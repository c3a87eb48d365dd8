"""One worker's load as a dispatcher sees it: its last report, corrected by what was dispatched after it.

The frontend and the simulator keep one tracker per worker, so that both decide from the same figures.
"""

from typing import NamedTuple

from ppd.core.decision import WorkerView
from ppd.core.records import WorkerLoad

NEVER_S = 1e9  # the age of a report that never came


class Glance(NamedTuple):
    """What placement compares workers by."""

    worker_id: str
    waiting: int
    kv_use: float
    running: int
    queued_prefill_tokens: int


class LoadTracker:
    """Counts this dispatcher's own turns on a worker, and merges them with the worker's reports."""

    def __init__(self, worker_id: str) -> None:
        self.id = worker_id
        self.running = 0  # own turns on the worker
        self.prefill_tokens = 0  # own prompt tokens that the worker has yet to compute
        self.unsent_kv_tokens = 0  # own prompt tokens of this P whose KV is not on a D yet
        self.max_batch_tokens = 0  # of the engine's step; 0 = not known
        self._load: WorkerLoad | None = None
        self._load_s = 0.0
        self._running_at_report = 0
        self._prefill_at_report = 0

    def report(self, load: WorkerLoad, now_s: float) -> None:
        self._load, self._load_s = load, now_s
        self._running_at_report, self._prefill_at_report = self.running, self.prefill_tokens

    @property
    def last_report(self) -> WorkerLoad | None:
        return self._load

    def report_age_s(self, now_s: float) -> float:
        """Seconds since the engine last answered its agent; NEVER_S without a report."""
        return now_s - self._load_s + self._load.silent_s if self._load else NEVER_S

    def glance(self, now_s: float, stale_s: float) -> Glance:
        """The figures of `view` that placement needs, at a fraction of its cost."""
        load = self._load
        if load is None or now_s - self._load_s + load.silent_s > stale_s:
            return Glance(self.id, 0, 0.0, self.running, self.prefill_tokens)
        running = load.running + self.running - self._running_at_report
        queued = load.queued_prefill_tokens + self.prefill_tokens - self._prefill_at_report
        return Glance(self.id, load.waiting, load.kv_use, max(0, running), max(0, queued))

    def view(self, now_s: float, stale_s: float) -> WorkerView:
        """The worker now. A report older than `stale_s` is left out: then only own turns count."""
        _, waiting, kv_use, running, queued = self.glance(now_s, stale_s)
        load, age_s = self._load, self.report_age_s(now_s)
        if load is None or age_s > stale_s:
            return WorkerView(
                self.id,
                running=running,
                queued_prefill_tokens=queued,
                max_batch_tokens=self.max_batch_tokens,
                unsent_kv_tokens=self.unsent_kv_tokens,
                age_s=age_s,
            )
        return WorkerView(
            self.id,
            running,
            waiting,
            kv_use,
            queued,
            load.itl_ms,
            load.prefill_tokens_per_s,
            load.prefill_speed_tokens_per_s,
            self.max_batch_tokens,
            self.unsent_kv_tokens,
            age_s,
        )
