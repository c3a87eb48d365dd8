"""One streamed answer on its way to the client."""

from typing import Any

from aiohttp import web

from workers.sim.faults import Faults
from workers.sim.request import ParsedRequest
from workers.sim.shapes import ApiShape


class StreamWriter:
    """Writes a stream's events straight to the transport: one task a stream would cost more than the bytes.

    What a client does not read waits in the transport's buffer, at most one answer.
    """

    def __init__(
        self,
        http: web.Request,
        parsed: ParsedRequest,
        shape: ApiShape,
        request_id: str,
        created: int,
        faults: Faults,
    ) -> None:
        self._http = http
        self._faults = faults
        self._frames = [shape.frames(parsed, answer, request_id, created) for answer in parsed.answers]
        self._opened = False
        self._held: list[tuple[int, int, int]] = []

    def open(self) -> None:
        """The head is out: what came before it may follow."""
        self._opened = True
        self._write(self._frames[0].announcement())
        if not self._faults.hold_text:
            self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        for item in held:
            self._send(*item)

    def tokens(self, index: int, first: int, last: int) -> None:
        if not self._opened or self._faults.hold_text:
            self._held.append((index, first, last))
            return
        self._flush()
        self._send(index, first, last)

    def _send(self, index: int, first: int, last: int) -> None:
        frames = self._frames[index]
        self._write((frames.opening() if first == 0 else b"") + frames.tokens(first, last))
        drop = self._faults.drop_after_tokens
        if drop and last >= drop and self._http.transport is not None:
            self._http.transport.abort()

    def close(self, counts: dict[str, Any]) -> None:
        self._flush()
        self._write(self._frames[0].closing(counts))

    def _write(self, data: bytes) -> None:
        transport = self._http.transport
        if data and transport is not None and not transport.is_closing():
            transport.write(b"%x\r\n%s\r\n" % (len(data), data))
