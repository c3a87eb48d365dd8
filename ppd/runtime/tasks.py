"""Background tasks that are supervised: a failure is seen, and the task comes back with back-off."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator

from prometheus_client import Counter

FAILURES = Counter("ppd_task_failures", "Background tasks that ended and were started again", ["task"])

_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 10.0
_HEALTHY_AFTER_S = 30.0  # a task that ran this long starts again with the first back-off


def backoff_s() -> Iterator[float]:
    """Endless jittered waits: doubling from 0.2 s to 10 s, each drawn from its upper half."""
    wait = _FIRST_BACKOFF_S
    while True:
        yield wait * random.uniform(0.5, 1.0)
        wait = min(wait * 2, _MAX_BACKOFF_S)


class OutageError(Exception):
    """Another service cannot be reached. It is expected and may pass: a task that it ends starts again."""


class Supervisor:
    """Owns the background tasks of one service."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, factory: Callable[[], Awaitable[None]]) -> None:
        """Run `factory()` for ever: when it raises or returns it is started again after a back-off."""
        if name in self._tasks:
            raise ValueError(f"task {name!r} runs already")
        self._tasks[name] = asyncio.create_task(self._forever(name, factory), name=name)

    async def _forever(self, name: str, factory: Callable[[], Awaitable[None]]) -> None:
        waits = backoff_s()
        while True:
            started_s = time.monotonic()
            try:
                await factory()
                self._log.warning("task %s ended; starting it again", name)
            except Exception as error:
                self._log.warning("task %s failed: %s", name, _describe(error), exc_info=_unexpected(error))
            FAILURES.labels(name).inc()
            if time.monotonic() - started_s > _HEALTHY_AFTER_S:
                waits = backoff_s()
            await asyncio.sleep(next(waits))

    async def stop(self, name: str) -> None:
        """Cancel one task and wait for it, at most 5 s."""
        task = self._tasks.pop(name, None)
        if task is not None:
            await _end([task])

    async def close(self) -> None:
        """Cancel all tasks and wait for them, at most 5 s."""
        tasks, self._tasks = list(self._tasks.values()), {}
        await _end(tasks)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel until they have ended: a library on the way may swallow a cancellation."""
    pending = set(tasks)
    for _ in range(10):
        if not pending:
            return
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.5)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _unexpected(error: BaseException) -> bool:
    """Outages are expected and get a line; a bug gets its traceback."""
    expected = isinstance(error, OSError | TimeoutError | OutageError)
    return not expected and not type(error).__module__.startswith("nats")
