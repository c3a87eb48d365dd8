"""Admission: bounds on running and waiting turns and on the wait, and 429 beyond them."""

import asyncio
from collections import deque

from controlplane.errors import ApiError
from controlplane.telemetry import metrics


class Gate:
    """A bounded number of turns, and a bounded queue in order of arrival."""

    def __init__(self, max_running: int, max_queued: int, queue_s: float) -> None:
        self._max_running = max_running
        self._max_queued = max_queued
        self._queue_s = queue_s
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def running(self) -> int:
        return self._running

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def admit(self) -> bool:
        """Whether the turn may run at once; then `leave` must follow."""
        if self._running >= self._max_running:
            return False
        self._running += 1
        return True

    async def wait(self) -> None:
        """Returns once the turn may run; `leave` must follow. Raises ApiError (429)."""
        if len(self._waiting) >= self._max_queued:
            raise self._reject("full")
        ticket = asyncio.get_running_loop().create_future()
        self._waiting.append(ticket)
        try:
            async with asyncio.timeout(self._queue_s):
                await ticket
        except BaseException as error:
            if ticket.done() and not ticket.cancelled():
                self.leave()  # the place came at the same moment
            elif ticket in self._waiting:
                self._waiting.remove(ticket)
            if isinstance(error, TimeoutError):
                raise self._reject("waited") from None
            raise

    def _reject(self, why: str) -> ApiError:
        metrics.REJECTED.labels(why).inc()
        return ApiError(
            429, "the service is overloaded; please try again later", code="overloaded", retry_after_s=1
        )

    def leave(self) -> None:
        """Give the place to the next one that still waits."""
        while self._waiting:
            ticket = self._waiting.popleft()
            if not ticket.done():
                ticket.set_result(None)
                return
        self._running -= 1
