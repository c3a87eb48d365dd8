"""One request of a client: its head, and its body as it arrives."""

import asyncio
from functools import lru_cache
from urllib.parse import unquote

import httptools

from controlplane.errors import ApiError

Headers = list[tuple[bytes, bytes]]
_CACHED_TARGET_BYTES = 256  # longer targets are parsed each time
_MAX_LOOSE_PARTS = 256  # parts of a body that one read may leave unjoined
_Place = tuple[str, bytes, bytes]  # decoded path, raw path, query


def _place(target: bytes) -> _Place:
    """Raises httptools.HttpParserError or UnicodeDecodeError where the target is no valid URL."""
    return _known_place(target) if len(target) <= _CACHED_TARGET_BYTES else _parsed_place(target)


def _parsed_place(target: bytes) -> _Place:
    parts = httptools.parse_url(target)
    raw = parts.path or b"/"
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, raw, parts.query or b""


_known_place = lru_cache(256)(_parsed_place)  # most requests ask for one of a few targets


class HttpRequest:
    """The head is complete from the start; the body is once `arrived` is set."""

    __slots__ = (
        "_arrival",
        "_body_size",
        "_joined",
        "_parts",
        "abandoned",
        "arrived",
        "body",
        "eager",
        "headers",
        "method",
        "path",
        "query",
        "raw_headers",
        "raw_path",
        "refusal",
    )

    def __init__(self, method: str, target: bytes, headers: Headers) -> None:
        self.method = method
        self.path, self.raw_path, self.query = _place(target)
        self.raw_headers = headers
        self.headers = dict(headers)
        self._parts: list[bytes] = []
        self._joined = 0  # leading elements of `_parts` that already are many parts joined
        self._body_size = 0
        self._arrival: asyncio.Future[None] | None = None
        self.body = b""
        self.arrived = False  # head and body are complete
        self.abandoned = False  # the client hung up first
        self.eager = False  # the application serves it from its head on, without waiting for the body
        self.refusal: ApiError | None = None  # the answer, decided before the request was complete

    def add(self, data: bytes, limit_bytes: int) -> bool:
        """Append to the body; False where it is now longer than the limit."""
        self._parts.append(data)
        self._body_size += len(data)
        return self._body_size <= limit_bytes

    def join_parts(self) -> None:
        """Join small parts, which as separate objects would take many times their size."""
        parts = self._parts
        if len(parts) - self._joined > _MAX_LOOSE_PARTS:
            parts[self._joined :] = [b"".join(parts[self._joined :])]
            self._joined += 1

    def complete(self) -> None:
        """The body has ended."""
        parts, self._parts = self._parts, []
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.arrived = True
        self._wake()

    def refuse(self, error: ApiError) -> None:
        """Answer with `error` and ignore the rest of the body."""
        self.refusal = error
        self._wake()

    def abandon(self) -> None:
        """The client hung up."""
        self.abandoned = True
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def whole(self) -> None:
        """Wait until the request has arrived or the client has hung up.

        Raises ApiError where the body is too large or too late.
        """
        if not self.arrived and self.refusal is None and not self.abandoned:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        if self.refusal is not None:
            raise self.refusal
