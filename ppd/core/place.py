"""Which worker takes a turn: pure, and shared by the frontend and the simulator.

Callers rotate the candidates from turn to turn, so that equals share the load; the first of equals wins.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec.structs import replace

from ppd.core.decision import Turn

_FULL_KV_USE = 0.95
_ROOMY_KV_USE = 0.8
_LONG_QUEUE = 4  # requests waiting beside a full batch


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


def pick_prefill(workers: Iterable[T], prompt_tokens: int, cached_tokens: Mapping[str, int]) -> T | None:
    """The P that would be through with this prompt first: least outstanding prefill tokens, its own
    uncached part included. `cached_tokens`: of this prompt, what each P is thought to hold."""

    def outstanding(worker: T) -> int:
        return worker.queued_prefill_tokens + max(0, prompt_tokens - cached_tokens.get(worker.worker_id, 0))

    return min(workers, key=outstanding, default=None)


def on_prefill(turn: Turn, prefill: str, session_prefill: str) -> Turn:
    """`turn` as the chosen P meets it: what the session's own P computed is in no other one's cache."""
    return turn if prefill == session_prefill or not turn.p_cached else replace(turn, p_cached=0)


def pick_decode(workers: Sequence[T]) -> T | None:
    """The least loaded D (or replica), by waiting requests, then KV use and running requests."""
    most = max((worker.running for worker in workers), default=0) or 1
    return min(
        workers, key=lambda worker: (worker.waiting, worker.kv_use + worker.running / most), default=None
    )


def saturated(home: Loaded, others: Iterable[Loaded]) -> bool:
    """Whether a session should leave its D: that one is full or queues, and another one has room."""
    if home.kv_use < _FULL_KV_USE and home.waiting <= _LONG_QUEUE:
        return False
    return any(
        other.worker_id != home.worker_id and other.waiting == 0 and other.kv_use < _ROOMY_KV_USE
        for other in others
    )
