"""Which worker takes a turn: pure, and shared by the frontend and the simulator.

Callers rotate the candidates from turn to turn, so that equals share the load; the first of equals wins.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

_FULL_KV_USE = 0.95
_ROOMY_KV_USE = 0.8
_NEAR_LOAD = 0.15  # of KV use plus running requests: workers that differ by less are about equally loaded
_LONG_QUEUE = 4  # requests waiting beside a full batch
# By how much a preferred worker may be busier than the least loaded one.
_NEAR_KV_USE = 0.1
_NEAR_RUNNING = 2


class Loaded(Protocol):
    """What workers are compared by: `ppd.core.load.Glance` or a whole WorkerView."""

    @property
    def worker_id(self) -> str: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_use(self) -> float: ...
    @property
    def running(self) -> int: ...
    @property
    def queued_prefill_tokens(self) -> int: ...


T = TypeVar("T", bound=Loaded)


def pick_prefill(
    workers: Sequence[T], prompt_tokens: int, cached_tokens: Callable[[str], int], preferred: str = ""
) -> T | None:
    """The P that would be through with this prompt first: least outstanding prefill tokens, its own
    uncached part included. `cached_tokens`: of this prompt, what a P is thought to hold.

    `preferred` may hold a part of the prompt too: it is taken if it would be later by half of it at most.
    """

    def outstanding(worker: T) -> int:
        return worker.queued_prefill_tokens + max(0, prompt_tokens - cached_tokens(worker.worker_id))

    best = min(workers, key=outstanding, default=None)
    wanted = _named(workers, preferred)
    if best is None or wanted is None:
        return best
    return wanted if outstanding(wanted) - outstanding(best) <= prompt_tokens // 2 else best


def _named(workers: Sequence[T], worker_id: str) -> T | None:
    return next((each for each in workers if each.worker_id == worker_id), None) if worker_id else None


def pick_decode(
    workers: Sequence[T], cached_tokens: Callable[[str], int] | None = None, preferred: str = ""
) -> T | None:
    """The least loaded D (or replica), by waiting requests, then KV use and running requests.

    Among those that are nearly as little loaded, the one that holds most of the prompt (`cached_tokens`), so
    that many chats that begin alike still spread; where that is not known the one that is `preferred`.
    """
    most = max((worker.running for worker in workers), default=0) or 1
    best: T | None = None
    least = (0, 0.0)
    for worker in workers:
        load = (worker.waiting, worker.kv_use + worker.running / most)
        if best is None or load < least:
            best, least = worker, load
    if best is None:
        return None
    if cached_tokens is None:
        wanted = _named(workers, preferred)
        return wanted if wanted is not None and _near(wanted, best) else best
    room = least[1] + _NEAR_LOAD
    near = [w for w in workers if w.waiting <= least[0] and w.kv_use + w.running / most <= room]
    return max(near, key=lambda worker: cached_tokens(worker.worker_id))


def _near(wanted: Loaded, least: Loaded) -> bool:
    return (
        wanted.waiting <= least.waiting
        and wanted.kv_use <= least.kv_use + _NEAR_KV_USE
        and wanted.running <= least.running + _NEAR_RUNNING
    )


def saturated(home: Loaded, others: Iterable[Loaded]) -> bool:
    """Whether a session should leave its D: that one is full or queues, and another one has room."""
    if home.kv_use < _FULL_KV_USE and home.waiting <= _LONG_QUEUE:
        return False
    return any(
        other.worker_id != home.worker_id and other.waiting == 0 and other.kv_use < _ROOMY_KV_USE
        for other in others
    )
