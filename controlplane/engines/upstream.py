"""HTTP/1.1 to the engines: asyncio protocols, httptools, one keep-alive pool a worker.

Deadlines are watched by one sweeper for all connections rather than by a timer for each read; back-pressure
pauses the socket once a reader lags by BUFFER_BYTES.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httptools

BUFFER_BYTES = 256 * 1024
SWEEP_S = 0.1
_COPIED_BYTES = 64 * 1024  # a shorter body costs less as one piece with its head
_KEEP_IDLE_S = 3.0  # vLLM closes idle connections after 5 s; a request must not race that
_KEEP_IDLE = 512
_NEVER = float("inf")


class UpstreamError(Exception):
    """The engine did not answer, or not to the end; `kind` is a bounded label: refused, connect-timeout,
    first-byte-timeout, idle-timeout, suspect, closed, protocol, too-large."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Connection(asyncio.Protocol):
    """One connection: at most one request at a time. Also the answer that is being read from it."""

    def __init__(self, pool: "Pool") -> None:
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

    def start(self, head: bytes, body: bytes, first_byte_s: float, idle_s: float) -> None:
        self._busy = True
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
        return self.deadline_s - self._idle_s if self.started and self.deadline_s < _NEVER else -_NEVER

    def waits_s(self, now_s: float) -> float:
        """For how long nothing has come of an answer; -inf where none is awaited, or the client lags."""
        if not self._busy or self.deadline_s == _NEVER:
            return -_NEVER
        return now_s - self.deadline_s + (self._idle_s if self.started else self._first_byte_s)

    def give_up(self) -> None:
        """No more is expected of this engine."""
        self.deadline_s = _NEVER
        self._fail(UpstreamError("suspect", "the engine gives no sign of life"))

    def expire(self) -> None:
        """The sweeper's word: the deadline has passed."""
        self.deadline_s = _NEVER
        kind = "idle-timeout" if self.started else "first-byte-timeout"
        self._fail(UpstreamError(kind, "the engine did not answer in time"))


class Pool:
    """The connections to one worker."""

    def __init__(self, url: str, connect_s: float, key: str = "") -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._connect_s = connect_s
        self.loop = asyncio.get_running_loop()
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._closed = False
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        self._head = f"host: {parts.netloc}\r\ncontent-type: application/json\r\n{authorization}".encode()

    async def post(
        self, path: bytes, headers: bytes, body: bytes, first_byte_s: float, idle_s: float
    ) -> Connection:
        """`request`, with the most frequent method."""
        return await self.request(b"POST", path, headers, body, first_byte_s, idle_s)

    async def request(
        self, method: bytes, path: bytes, headers: bytes, body: bytes, first_byte_s: float, idle_s: float
    ) -> Connection:
        """Send a request and wait for the answer's head. `headers` are whole lines.

        A kept connection that the engine closed meanwhile is replaced once. Raises UpstreamError.
        """
        line = b"%b %b HTTP/1.1\r\n" % (method, path)
        head = b"%b%b%bcontent-length: %d\r\n\r\n" % (line, self._head, headers, len(body))
        while True:
            connection = self._take() or await self._connect()
            try:
                connection.start(head, body, first_byte_s, idle_s)
                await connection.head()
                return connection
            except UpstreamError as error:
                connection.abort()
                if not (connection.reused and error.kind == "closed" and not connection.started):
                    raise
            except BaseException:
                connection.abort()
                raise

    def _take(self) -> Connection | None:
        now_s = self.loop.time()
        while self._idle:
            connection = self._idle.pop()
            if now_s - connection.idle_since_s < _KEEP_IDLE_S:
                connection.reused = True
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await self.loop.create_connection(
                    lambda: Connection(self), self._host, self._port
                )
        except TimeoutError:
            raise UpstreamError("connect-timeout", "the engine did not accept a connection in time") from None
        except OSError as error:
            raise UpstreamError(
                "refused", f"the engine cannot be reached: {error.strerror or error}"
            ) from None
        self._all.add(connection)
        return connection

    def put_back(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= _KEEP_IDLE or connection not in self._all:
            connection.abort()
            return
        connection.idle_since_s = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self._all.discard(connection)
        try:
            self._idle.remove(connection)
        except ValueError:
            pass

    def sweep(self, now_s: float) -> None:
        """Fail what has passed its deadline, and close what was idle for too long."""
        for connection in [each for each in self._all if each.deadline_s < now_s]:
            connection.expire()
        while self._idle and now_s - self._idle[0].idle_since_s >= _KEEP_IDLE_S:
            self._idle.popleft().abort()

    @property
    def heard_s(self) -> float:
        """When a byte of the worker's came last, as far as connections tell that are open now."""
        return max((each.heard_s for each in self._all), default=-_NEVER)

    def waits_s(self, now_s: float) -> float:
        """The longest that an answer has been awaited in vain; -inf where none is awaited."""
        return max((each.waits_s(now_s) for each in self._all), default=-_NEVER)

    def give_up(self, now_s: float, waited_s: float) -> None:
        """Fail all answers of which nothing has come for so long."""
        for connection in [each for each in self._all if each.waits_s(now_s) >= waited_s]:
            connection.give_up()

    @property
    def unused(self) -> bool:
        return not self._all

    def reopen(self) -> None:
        """After `close`."""
        self._closed = False

    def close(self) -> None:
        """Close idle connections now and the others when they end."""
        self._closed = True
        while self._idle:
            self._idle.popleft().abort()
