"""One request of a client with its answer, served by one task that a hang-up or a deadline cancels."""

import asyncio
from collections.abc import Callable
from typing import Any

from controlplane.http.flow import Flow
from controlplane.http.http_request import HttpRequest
from controlplane.http.http_response import HttpResponse

STALL_S = 120.0  # how long a client may leave its stream unread
NEVER = float("inf")


class Exchange:
    """`gone` is set when the client hangs up; a serving task that watches for it is cancelled then."""

    __slots__ = (
        "_deadline_s",
        "_flow",
        "_transport",
        "gone",
        "late",
        "on_gone",
        "request",
        "response",
        "task",
        "visit",
    )

    def __init__(
        self, request: HttpRequest, response: HttpResponse, flow: Flow, transport: asyncio.Transport
    ) -> None:
        self.request = request
        self.response = response
        self._flow = flow
        self._transport = transport
        self._deadline_s = NEVER
        self.visit: Any = None  # what the application knows of the caller
        self.gone = self.late = False
        self.task: asyncio.Task[None] | None = None
        self.on_gone: Callable[[], None] | None = None

    @property
    def peer(self) -> Any:
        """The client's address."""
        return self._transport.get_extra_info("peername")

    @property
    def secure(self) -> bool:
        """Whether the client came over TLS."""
        return self._transport.get_extra_info("ssl_object") is not None

    def watch(self, deadline_s: float = NEVER) -> None:
        """From now on a hang-up, or the deadline, cancels the serving task; the deadline also sets `late`.

        Raises CancelledError where the client has hung up already.
        """
        if self.gone:
            raise asyncio.CancelledError
        self.on_gone = self._cancel
        self._deadline_s = deadline_s

    def unwatch(self) -> None:
        """Hang-ups and deadlines cancel nothing any more."""
        self.on_gone = None
        self._deadline_s = NEVER

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def hang_up(self) -> None:
        """The client is gone."""
        if not self.response.finished:
            self.gone = True
            self.request.abandon()
            if self.on_gone is not None:
                self.on_gone()

    def sweep(self, now_s: float) -> None:
        """Cancel the serving task if its deadline has passed."""
        if now_s > self._deadline_s:
            self._deadline_s = NEVER
            self.late = True
            self._cancel()

    def give_up(self) -> bool:
        """Whether only the deadline cancelled the task, which may then go on and answer with an error."""
        return self.late and not self.gone and self.task is not None and not self.task.uncancel()

    async def drained(self) -> None:
        """Wait until the client has read on. A client that reads nothing for STALL_S counts as gone: raises
        CancelledError."""
        try:
            async with asyncio.timeout(STALL_S):
                await self._flow.writable()
        except TimeoutError:
            self.gone = True
            raise asyncio.CancelledError from None
