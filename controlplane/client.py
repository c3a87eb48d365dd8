"""The client's side of one exchange over ASGI: its body, the answer, and the news that it hung up."""

import asyncio
from typing import Any

from controlplane.door import VISIT, Visit
from controlplane.errors import ApiError
from controlplane.server import WIRE, Wire

Headers = list[tuple[bytes, bytes]]
STALL_S = 120.0  # how long a client may leave its stream unread


class Client:
    """One request and its answer. `gone` is set, and the serving task cancelled, when the client hangs up."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self._receive = receive
        self._send = send
        self._wire: Wire = scope["extensions"][WIRE]
        self.path: str = scope["path"]
        self.visit: Visit = scope[VISIT]
        self.headers = self.visit.headers
        self.started = False
        self.finished = False
        self.gone = False
        # One chunk, at once; False = the client lags: wait for `drained` before the next one.
        self.push = self._wire.write
        self._task = asyncio.current_task()
        self._late = False

    async def read_body(self, limit_bytes: int, deadline_s: float) -> bytes:
        """The whole body. Raises ApiError (413, 408), or CancelledError with `gone` set."""
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit_bytes:
            raise self._too_large(limit_bytes)
        if self.headers.get(b"content-encoding", b"identity") != b"identity":
            raise ApiError(415, "compressed request bodies are not supported")
        timer = asyncio.get_running_loop().call_later(deadline_s, self._too_late)
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    self.gone = True
                    raise asyncio.CancelledError
                data: bytes = message.get("body", b"")
                size += len(data)
                if size > limit_bytes:
                    raise self._too_large(limit_bytes)
                if not message.get("more_body"):
                    return b"".join([*parts, data]) if parts else data
                parts.append(data)
        except asyncio.CancelledError:
            if self._late and self._task is not None and not self._task.uncancel():
                raise ApiError(408, "the body did not arrive in time") from None
            raise
        finally:
            timer.cancel()

    def _too_late(self) -> None:
        if self._task is not None:
            self._late = True
            self._task.cancel()

    @staticmethod
    def _too_large(limit_bytes: int) -> ApiError:
        return ApiError(413, f"the body is larger than {limit_bytes} bytes")

    def watch(self) -> None:
        """From now on a hang-up cancels the serving task."""
        self._wire.on_gone = self._hung_up

    def _hung_up(self) -> None:
        if not self.finished and self._task is not None:
            self.gone = True
            self._task.cancel()

    def unwatch(self) -> None:
        self.finished = True
        self._wire.on_gone = None

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def drained(self) -> None:
        """Until the client has read on; one that never does is treated as one that hung up."""
        try:
            async with asyncio.timeout(STALL_S):
                await self._wire.drained()
        except TimeoutError:
            self.gone = True
            raise asyncio.CancelledError from None

    async def end(self, data: bytes = b"") -> None:
        """The last of the answer."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer at once."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def fail(self, error: ApiError, headers: Headers) -> None:
        """The error as the answer, or as the last event of a stream that has begun."""
        if not self.started:
            await self.answer(error.status, [*error.headers(), *headers], error.body())
        elif not self.finished:
            await self.end(error.event())
