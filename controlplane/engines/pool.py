"""The kept connections to one engine, and the check of their deadlines."""

import asyncio
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

from controlplane.engines.connection import Connection, UpstreamError
from controlplane.engines.deadline import deadline

SWEEP_S = 0.1
_KEEP_IDLE_S = 3.0  # vLLM closes idle connections after 5 s; a request must not race that
_KEEP_IDLE = 512
_NEVER = float("inf")


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

    async def get(self, path: bytes, within_s: float, limit_bytes: int) -> bytes:
        """The body of a page, on a connection of its own. Raises UpstreamError; the caller has a deadline."""
        connection = await self._connect()
        self._all.discard(connection)  # a question to the engine is no sign of life for the turns on it
        try:
            head = b"GET %b HTTP/1.1\r\n%bconnection: close\r\n\r\n" % (path, self._head)
            connection.start(head, b"", within_s, within_s)
            await connection.head()
            return await connection.read_all(limit_bytes)
        finally:
            connection.abort()

    async def post(
        self,
        path: bytes,
        headers: bytes,
        body: bytes,
        first_byte_s: float,
        idle_s: float,
        excuse: Callable[[float], bool] | None = None,
    ) -> Connection:
        """`request`, with the most frequent method."""
        return await self.request(b"POST", path, headers, body, first_byte_s, idle_s, excuse)

    async def request(
        self,
        method: bytes,
        path: bytes,
        headers: bytes,
        body: bytes,
        first_byte_s: float,
        idle_s: float,
        excuse: Callable[[float], bool] | None = None,
    ) -> Connection:
        """Send a request and wait for the answer's head. `headers` are whole lines. When the deadline has
        passed and the engine makes steps, `excuse` decides whether to wait longer. A kept connection that
        the engine closed is replaced once. Raises UpstreamError.
        """
        line = b"%b %b HTTP/1.1\r\n" % (method, path)
        head = b"%b%b%bcontent-length: %d\r\n\r\n" % (line, self._head, headers, len(body))
        while True:
            connection = self._take() or await self._connect()
            try:
                connection.start(head, body, first_byte_s, idle_s, excuse)
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
            async with deadline(self._connect_s):
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

    def sweep(self, now_s: float, works: bool = False) -> None:
        """Fail what has passed its deadline, and close what was idle for too long. `works`: the engine is
        known to make steps."""
        for connection in [each for each in self._all if each.deadline_s < now_s]:
            connection.expire(now_s, works)
        while self._idle and now_s - self._idle[0].idle_since_s >= _KEEP_IDLE_S:
            self._idle.popleft().abort()

    def put_off(self, by_s: float) -> None:
        """This process stood still for `by_s` seconds, in which it could not hear the engine."""
        for connection in self._all:
            connection.put_off(by_s)

    @property
    def heard_s(self) -> float:
        """When a byte last came from the worker, as far as its open connections tell."""
        return max((each.heard_s for each in self._all), default=-_NEVER)

    def waits_s(self, now_s: float) -> float:
        """How long the longest-waiting answer has been silent; -inf where none is awaited."""
        return max((each.waits_s(now_s) for each in self._all), default=-_NEVER)

    def give_up(self, now_s: float, waited_s: float) -> None:
        """Fail all answers that have been silent for `waited_s`."""
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
