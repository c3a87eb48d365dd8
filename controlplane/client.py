"""The client's side of one exchange over ASGI: its body, the answer, and the news that it hung up."""

import asyncio
from typing import Any

from controlplane.errors import ApiError

Headers = list[tuple[bytes, bytes]]


class Client:
    """One request and its answer. `gone` is set, and the serving task cancelled, when the client hangs up."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self._receive = receive
        self._send = send
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
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

    async def write(self, data: bytes, more: bool = True) -> None:
        """Waits while the client reads too slowly."""
        if not more:
            self.finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer at once."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.write(body, more=False)

    async def fail(self, error: ApiError, headers: Headers) -> None:
        """The error as the answer, or as the last event of a stream that has begun."""
        if not self.started:
            await self.answer(error.status, [*error.headers(), *headers], error.body())
        elif not self.finished:
            await self.write(error.event(), more=False)
