"""The access log: a line of JSON for each request, written behind, so that no request waits for a disk."""

import asyncio
import sys
from collections import deque
from typing import Any

import msgspec

from controlplane.telemetry import metrics

_MAX_LINES = 10_000
_PAUSE_S = 0.25


class AccessLog:
    """Lines for a file, or for standard output where `path` is `-`; bounded, the oldest dropped first.

    The file is opened for each batch of lines, so that it can be rotated by being moved away.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines: deque[dict[str, Any]] = deque()

    def add(self, line: dict[str, Any]) -> None:
        if len(self._lines) >= _MAX_LINES:
            self._lines.popleft()
            metrics.ACCESS_LINES.labels("dropped").inc()
        self._lines.append(line)

    async def run(self) -> None:
        """For a Supervisor: raises OSError where the file cannot be written; the lines are kept."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            if self._lines:
                await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Write what there is. Raises OSError."""
        lines = list(self._lines)
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if self._path == "-":
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        else:
            with open(self._path, "ab") as file:
                file.write(text)
        for line in lines:
            if self._lines and self._lines[0] is line:  # not dropped meanwhile
                self._lines.popleft()
        metrics.ACCESS_LINES.labels("written").inc(len(lines))
