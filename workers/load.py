"""Load reports: what the engine is busy with, four times a second."""

from collections import deque

from ppd.core.records import WorkerLoad
from workers.engine.metrics import Sample

_OF_LATE_S = 10.0


class LoadMeter:
    """Turns the engine's counters into rates over the last ten seconds."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._seq = 0
        self._past: deque[tuple[float, Sample]] = deque()

    def report(self, now_s: float, sample: Sample, queued_prefill_tokens: int | None) -> WorkerLoad:
        """The report for `sample`, taken at `now_s` of a monotonic clock.

        `queued_prefill_tokens` is the connector's count; without a connector (None) it is estimated by the
        waiting requests and the mean of what a request's prefill computed of late.
        """
        if self._past and sample.steps < self._past[-1][1].steps:
            self._past.clear()  # the engine started anew
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
        return WorkerLoad(
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
            decode_tokens_per_s=_ratio(sample.generation_tokens - then.generation_tokens, took_s),
            preemptions=int(sample.preemptions),
        )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
