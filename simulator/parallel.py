"""One function over many tasks, in as many processes as are given."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each(function: Callable[[T], R], tasks: Iterable[T], processes: int, chunksize: int = 1) -> Iterator[R]:
    """Results in the order of `tasks`, as they are done; one process is this one."""
    if processes == 1:
        yield from map(function, tasks)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(function, tasks, chunksize=chunksize)
