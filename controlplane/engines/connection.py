"""HTTP/1.1 to an engine: one connection, and the answer that is read from it.

Deadlines are watched by one sweeper for all connections rather than by a timer for each read; back-pressure
pauses the socket once a reader lags by BUFFER_BYTES.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import httptools

BUFFER_BYTES = 256 * 1024
EXTENSION_S = 1.0  # by which a deadline is put off while the engine works
_COPIED_BYTES = 64 * 1024  # a shorter body costs less as one piece with its head
_NEVER = float("inf")


class UpstreamError(Exception):
    """The engine did not answer, or not to the end; `kind` is a bounded label: refused, connect-timeout,
    first-byte-timeout, idle-timeout, queue, suspect, closed, protocol, too-large."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Owner(Protocol):
    """What a connection belongs to: the pool of one worker."""

    loop: asyncio.AbstractEventLoop

    def put_back(self, connection: "Connection") -> None:
        """It is free for another request."""

    def forget(self, connection: "Connection") -> None:
        """It is closed."""


class Connection(asyncio.Protocol):
    """One connection: at most one request at a time. Also the answer that is being read from it."""

    def __init__(self, pool: Owner) -> None:
        self._pool = pool
        self._loop = pool.loop
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._busy = False  # a request was sent, and its answer is not done with
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._feed: Callable[[bytes], bool] | None = None
        self._paused = False
        self._keep = False  # the engine takes another request on this connection
        self._error: UpstreamError | None = None
        self._idle_s = _NEVER
        self.deadline_s = _NEVER
        self._first_byte_s = _NEVER
        self._extended: tuple[float, float] | None = None  # a deadline put off, and since when it is silent
        self._excuse: Callable[[float], bool] | None = None
        self.idle_since_s = -_NEVER
        self.reused = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.started = False  # a byte of the answer was seen

    # --- asyncio's callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # bytes that nobody asked for
            self.abort()
            return
        self.started = True
        self.deadline_s = self._loop.time() + self._idle_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(UpstreamError("protocol", f"the engine's answer is no HTTP: {error}"))
            return
        if self._feed is not None and not self.complete:
            self._pass_on()
            return
        if self._buffered > BUFFER_BYTES:
            self._pause()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        if self._busy and not self.complete:
            self._fail(
                UpstreamError("closed", "the engine closed the connection before its answer was complete")
            )

    # --- httptools' callbacks ---

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered += len(data)

    def on_message_complete(self) -> None:
        if self.status < 200:  # an interim answer
            self.status = 0
            self.headers = []
            return
        self.complete = True
        self._keep = self._parser.should_keep_alive()
        self.deadline_s = _NEVER

    # --- one request ---

    def start(
        self,
        head: bytes,
        body: bytes,
        first_byte_s: float,
        idle_s: float,
        excuse: Callable[[float], bool] | None = None,
    ) -> None:
        self._busy = True
        self._extended, self._excuse = None, excuse
        self._chunks, self._buffered = [], 0
        self.headers, self.status, self._feed = [], 0, None
        self.complete = self.started = False
        self._idle_s, self._first_byte_s = idle_s, first_byte_s
        self.deadline_s = self._loop.time() + first_byte_s
        if len(body) < _COPIED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def head(self) -> None:
        """Until status and headers are there. Raises UpstreamError."""
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """What has come in, at least a byte; empty at the end. Raises UpstreamError."""
        while not self._chunks:
            if self.complete:
                return b""
            await self._wait()
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks, self._buffered = [], 0
        if self._paused:
            self._resume()
        return data

    async def pipe(
        self, first: bytes, feed: Callable[[bytes], bool], drained: Callable[[], Awaitable[None]]
    ) -> bytes:
        """Hand `first` and what follows to `feed`, straight from the reading callback. Returns what came with
        the answer's end, so that the caller can send its own end along with it.

        Where `feed` returns False reading pauses until `drained()` has returned. Raises UpstreamError.
        """
        self._chunks.insert(0, first)
        self._feed = feed
        if not self.complete:
            self._pass_on()
        while not self.complete:
            if self._paused:
                await drained()
                self._resume()
            else:
                await self._wait()
        last, self._chunks = b"".join(self._chunks), []
        return last

    def _pass_on(self) -> None:
        chunks, feed = self._chunks, self._feed
        if chunks and feed is not None:
            self._chunks, self._buffered = [], 0
            if not feed(chunks[0] if len(chunks) == 1 else b"".join(chunks)):
                self._pause()
                self._wake()

    def _pause(self) -> None:
        if not self._paused and not self.complete:
            self._paused = True
            self.deadline_s = _NEVER  # the client is slow, not the engine
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        self.deadline_s = self._loop.time() + self._idle_s
        if not self._transport.is_closing():
            self._transport.resume_reading()

    async def read_all(self, limit_bytes: int) -> bytes:
        """The rest of the body. Raises UpstreamError."""
        parts: list[bytes] = []
        size = 0
        while not self.complete:
            if self._chunks:
                parts.append(await self.read())
                size += len(parts[-1])
                if size > limit_bytes:
                    break
            else:
                await self._wait()
        parts += self._chunks
        if size + self._buffered > limit_bytes:
            raise UpstreamError("too-large", f"the engine's answer is larger than {limit_bytes} bytes")
        self._chunks, self._buffered = [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def ended(self) -> bool:
        """Nothing is left to be read."""
        return self.complete and not self._chunks

    def close(self) -> None:
        """Done with this answer: a complete one frees the connection; any other is cut off, which stops
        the engine's work on it."""
        if self.complete and self._keep and not self._paused:
            self._busy = False
            self._chunks = []
            self._pool.put_back(self)
        else:
            self.abort()

    def abort(self) -> None:
        self._busy = False
        self.deadline_s = _NEVER
        self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None and not self._chunks:
            raise self._error

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        self._wake()
        self._transport.abort()

    @property
    def heard_s(self) -> float:
        """When a byte came last, as far as it is known."""
        if not self._busy:
            return self.idle_since_s
        if not self.started or self.deadline_s == _NEVER:
            return -_NEVER
        return self._silent_since_s()

    def waits_s(self, now_s: float) -> float:
        """For how long nothing has come of an answer; -inf where none is awaited, or the client lags."""
        if not self._busy or self.deadline_s == _NEVER:
            return -_NEVER
        return now_s - self._silent_since_s()

    def _silent_since_s(self) -> float:
        if self._extended is not None and self._extended[0] == self.deadline_s:
            return self._extended[1]
        return self.deadline_s - (self._idle_s if self.started else self._first_byte_s)

    def put_off(self, by_s: float) -> None:
        """Move the deadline, and since when the engine counts as silent."""
        if self._extended is not None and self._extended[0] == self.deadline_s:
            self._extended = (self.deadline_s + by_s, self._extended[1] + by_s)
        self.deadline_s += by_s

    def give_up(self) -> None:
        """No more is expected of this engine."""
        self.deadline_s = _NEVER
        self._fail(UpstreamError("suspect", "the engine gives no sign of life"))

    def expire(self, now_s: float, works: bool) -> None:
        """The deadline has passed. An engine that `works` has more time, unless whoever waits would rather
        go elsewhere by now."""
        if works and (self._excuse is None or self._excuse(now_s)):
            since_s = self._silent_since_s()
            self.deadline_s = now_s + EXTENSION_S
            self._extended = (self.deadline_s, since_s)
            return
        self.deadline_s = _NEVER
        if works:
            self._fail(UpstreamError("queue", "the engine works, but not on this in time"))
            return
        kind = "idle-timeout" if self.started else "first-byte-timeout"
        self._fail(UpstreamError(kind, "the engine did not answer in time"))
