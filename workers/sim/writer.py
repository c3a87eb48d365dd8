"""One streamed answer on its way to the client."""

from typing import Any

from aiohttp import web

from workers.sim.faults import Faults
from workers.sim.request import ParsedRequest
from workers.sim.shapes import Shape


class StreamWriter:
    """Writes a stream's events straight to the transport: one task a stream would cost more than the bytes.

    What a client does not read waits in the transport's buffer, at most one answer.
    """

    def __init__(
        self,
        http: web.Request,
        parsed: ParsedRequest,
        shape: Shape,
        request_id: str,
        created: int,
        faults: Faults,
    ) -> None:
        self._http = http
        self._faults = faults
        self._frames = [shape.frames(parsed, answer, request_id, created) for answer in parsed.answers]
        self._early: list[tuple[int, int, int]] | None = []

    def open(self) -> None:
        """The head is out: what came before it may follow."""
        early, self._early = self._early, None
        self._write(self._frames[0].announcement())
        for item in early or []:
            self.tokens(*item)

    def tokens(self, index: int, first: int, last: int) -> None:
        if self._early is not None:
            self._early.append((index, first, last))
            return
        frames = self._frames[index]
        self._write((frames.opening() if first == 0 else b"") + frames.tokens(first, last))
        drop = self._faults.drop_after_tokens
        if drop and last >= drop and self._http.transport is not None:
            self._http.transport.abort()

    def close(self, counts: dict[str, Any]) -> None:
        self._write(self._frames[0].closing(counts))

    def _write(self, data: bytes) -> None:
        transport = self._http.transport
        if data and transport is not None and not transport.is_closing():
            transport.write(b"%x\r\n%s\r\n" % (len(data), data))
