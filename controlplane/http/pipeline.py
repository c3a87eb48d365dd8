"""The requests of one connection, answered one after another in the order in which they came."""

import asyncio
from collections import deque
from collections.abc import Callable

from controlplane.http.context import ServerContext
from controlplane.http.exchange import Exchange
from controlplane.http.flow import Flow

_MAX_WAITING = 16  # requests; while more wait nothing is read, so that a hang-up goes unnoticed as well
MAX_AHEAD = 256  # requests waiting because a single read brought them all


class Pipeline:
    """Serves each exchange by the application in a task, one at a time. `ended` is called after each."""

    __slots__ = ("_context", "_ended", "_flow", "_loop", "_queue", "current")

    def __init__(
        self,
        context: ServerContext,
        loop: asyncio.AbstractEventLoop,
        flow: Flow,
        ended: Callable[[Exchange], None],
    ) -> None:
        self._context = context
        self._loop = loop
        self._flow = flow
        self._ended = ended
        self._queue: deque[Exchange] = deque()
        self.current: Exchange | None = None  # the one that is being answered

    @property
    def empty(self) -> bool:
        return self.current is None and not self._queue

    @property
    def full(self) -> bool:
        return len(self._queue) >= MAX_AHEAD

    def line_up(self, exchange: Exchange) -> None:
        """Serve it now, or once those before it have been answered and read."""
        if self.current is None and not self._flow.write_paused:
            self._start(exchange)
            return
        self._queue.append(exchange)
        if len(self._queue) > _MAX_WAITING or self.current is None:
            self._flow.pause_reading()

    def start_next(self) -> bool:
        """Serve the next one that waits, if there is one."""
        if not self._queue:
            return False
        self._start(self._queue.popleft())
        return True

    def _start(self, exchange: Exchange) -> None:
        self.current = exchange
        self._context.serving.add(exchange)
        exchange.task = self._loop.create_task(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._context.application(exchange)
        except Exception as error:
            self._context.failed(exchange, error)
        finally:
            exchange.unwatch()
            self._context.serving.discard(exchange)
            self.current = None
            self._ended(exchange)

    def end_after_last(self) -> None:
        """Let the answer to the last request end the connection."""
        last = self._queue[-1] if self._queue else self.current
        if last is not None:
            last.response.keep_alive = False

    def end_after_all(self) -> None:
        """Let each answer say that the connection ends."""
        for exchange in (self.current, *self._queue):
            if exchange is not None:
                exchange.response.keep_alive = False

    def abandon(self) -> None:
        """The client is gone."""
        self._queue.clear()
        if self.current is not None:
            self.current.hang_up()
