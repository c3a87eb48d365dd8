"""The usable workers of one role: adding, dropping and sampling cost the same however many there are."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

CANDIDATES = 6  # workers of one role that a turn looks at, beside those that hold its conversation


class Named(Protocol):
    id: str


T = TypeVar("T", bound=Named)


class Roster(Generic[T]):
    """Workers by id. `draw` gives numbers uniform in [0, 1)."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._workers: list[T] = []
        self._places: dict[str, int] = {}
        self._first = 0

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[T]:
        return iter(self._workers)

    def get(self, worker_id: str) -> T | None:
        place = self._places.get(worker_id)
        return None if place is None else self._workers[place]

    def put(self, worker: T) -> None:
        """Add a worker, or replace the one of the same id."""
        place = self._places.get(worker.id)
        if place is None:
            self._places[worker.id] = len(self._workers)
            self._workers.append(worker)
        else:
            self._workers[place] = worker

    def drop(self, worker_id: str) -> None:
        """Nothing happens where the worker is not in it."""
        place = self._places.pop(worker_id, None)
        if place is None:
            return
        last = self._workers.pop()
        if place < len(self._workers):
            self._workers[place] = last
            self._places[last.id] = place

    def rotated(self) -> list[T]:
        """All of them, beginning one further at each call, so that equals share the load."""
        workers = self._workers
        if len(workers) < 2:
            return workers[:]
        self._first = (self._first + 1) % len(workers)
        return workers[self._first :] + workers[: self._first]

    def some(self, limit: int) -> list[T]:
        """All of them up to `limit`; of more, about `limit` chosen at random.

        The least loaded of a few random workers is nearly as good as the least loaded of all, and is not
        the same one for every dispatcher (Mitzenmacher, The Power of Two Choices in Randomized Load
        Balancing, 2001).
        """
        n = len(self._workers)
        if n <= limit:
            return self.rotated()
        at, step = int(self._draw() * n), 1 + int(self._draw() * (n - 1))
        found = []
        for _ in range(limit):
            found.append(self._workers[at])
            at = (at + step) % n
        return found

    def with_(self, wanted: Iterable[str], limit: int) -> list[T]:
        """`some`, and the workers of the ids `wanted` that are in the roster."""
        found = self.some(limit)
        if len(self._workers) > limit:
            for worker_id in wanted:
                worker = self.get(worker_id)
                if worker is not None and worker not in found:
                    found.append(worker)
        return found
