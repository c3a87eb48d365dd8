"""A deadline that counts only time in which this process ran: its own stall is no engine's fault."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_TICK_S = 0.1


class _Ticks:
    """Ends the scope after `limit_s`, counted in ticks. A late tick counts as a punctual one."""

    def __init__(self, scope: asyncio.Timeout, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._scope = scope
        self._left_s = limit_s
        self._start()

    def _start(self) -> None:
        step_s = min(_TICK_S, self._left_s)
        due_s = self._loop.time() + step_s
        self._timer = self._loop.call_at(due_s, self._tick, step_s, due_s)

    def _tick(self, step_s: float, due_s: float) -> None:
        self._left_s -= step_s
        if self._left_s > 1e-6:
            self._start()
        elif self._loop.time() - due_s > _TICK_S:  # what came in meanwhile is looked at first
            self._timer = self._loop.call_later(_TICK_S, self._expire)
        else:
            self._expire()

    def _expire(self) -> None:
        self._scope.reschedule(self._loop.time())

    def stop(self) -> None:
        self._timer.cancel()


@asynccontextmanager
async def deadline(limit_s: float) -> AsyncIterator[None]:
    """Like `asyncio.timeout`, but counts only time in which this process runs. Raises TimeoutError."""
    async with asyncio.timeout(None) as scope:
        ticks = _Ticks(scope, limit_s)
        try:
            yield
        finally:
            ticks.stop()
