"""The agent's end of the connector's reports: passes them on to NATS and keeps the engine's prefill queue."""

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

from ppd.core.names import kv_held_subject, kv_moved_subject
from ppd.core.records import BadRecordError, KvHeld, KvMoved, encode
from ppd.runtime.bus import Bus
from workers.engine.client import EngineError
from workers.reports import REPORTS_SOCKET, QueuedTokens, unpack

_WAITING = 1000


class ReportReceiver(asyncio.DatagramProtocol):
    """Bound to the socket in the run folder for as long as `open` is entered."""

    def __init__(self, namespace: str, bus: Bus, logger: logging.Logger) -> None:
        self._namespace = namespace
        self._bus = bus
        self._log = logger
        self._queue: asyncio.Queue[KvMoved | KvHeld] = asyncio.Queue(_WAITING)
        self._transport: asyncio.BaseTransport | None = None
        self.dropped = 0  # reports that cannot be read, or that come faster than NATS takes them
        self.queued_prefill_tokens: int | None = None  # None until an engine with the connector reported it

    async def open(self, run_dir: Path) -> None:
        """Raises EngineError where the socket cannot be made."""
        path = _fresh_path(run_dir)
        try:
            self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: self, local_addr=str(path), family=socket.AF_UNIX
            )
        except OSError as error:
            raise EngineError(f"{path} cannot be made ({error}): choose a shorter --run-dir") from error

    def datagram_received(self, data: bytes, addr: object) -> None:
        try:
            report = unpack(data)
        except BadRecordError as error:
            self.dropped += 1
            self._log.warning("a report of the connector cannot be read: %s", error)
            return
        if isinstance(report, QueuedTokens):
            self.queued_prefill_tokens = report.tokens
            return
        try:
            self._queue.put_nowait(report)
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """For a Supervisor: publishes what comes in."""
        while True:
            report = await self._queue.get()
            moved = isinstance(report, KvMoved)
            subject = (kv_moved_subject if moved else kv_held_subject)(self._namespace, report.worker_id)
            await self._bus.publish(subject, encode(report), "kv")

    def close(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.close()


def _fresh_path(run_dir: Path) -> Path:
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / REPORTS_SOCKET
    path.unlink(missing_ok=True)
    return path
