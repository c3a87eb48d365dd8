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
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None

    async def read_body(self, limit_bytes: int, deadline_s: float) -> bytes:
        """The whole body. Raises ApiError (413, 408), or CancelledError with `gone` set."""
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit_bytes:
            raise self._too_large(limit_bytes)
        if self.headers.get(b"content-encoding", b"identity") != b"identity":
            raise ApiError(415, "compressed request bodies are not supported")
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._next(until_s - loop.time())
            data = message.get("body", b"")
            size += len(data)
            if size > limit_bytes:
                raise self._too_large(limit_bytes)
            if not message.get("more_body"):
                return b"".join([*parts, data]) if parts else bytes(data)
            parts.append(data)

    @staticmethod
    def _too_large(limit_bytes: int) -> ApiError:
        return ApiError(413, f"the body is larger than {limit_bytes} bytes")

    async def _next(self, deadline_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(deadline_s):
                message: dict[str, Any] = await self._receive()
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time") from None
        if message["type"] == "http.disconnect":
            self.gone = True
            raise asyncio.CancelledError
        return message

    def watch(self) -> None:
        """From now on a hang-up cancels the serving task."""
        self._watcher = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.finished and self._task is not None:
            self.gone = True
            self._task.cancel()

    def unwatch(self) -> None:
        self.finished = True
        if self._watcher is not None:
            self._watcher.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def push(self, data: bytes) -> bool:
        """One chunk, at once; False = the client lags: wait for `drained` before the next one."""
        return self._wire.write(data)

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
