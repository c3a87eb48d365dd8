"""Carries what the connector saw out of the engine, on a thread of its own: spans, and reports to the agent.

The engine's own thread only puts a small object on a bounded queue; when that is full, it is dropped.
"""

import contextlib
import queue
import socket
import threading
from pathlib import Path

from opentelemetry.trace import Tracer

from ppd.core.records import KvHeld, KvMoved
from workers.connector.spans import Puller, emit_span
from workers.connector.transfers import Transfer
from workers.reports import REPORTS_SOCKET, QueuedTokens, Report, pack

_WAITING = 4096


class Reporter:
    """`put` never blocks and never raises."""

    def __init__(self, puller: Puller, tracer: Tracer | None, run_dir: Path | None) -> None:
        self._puller = puller
        self._tracer = tracer
        self._address = str(run_dir / REPORTS_SOCKET) if run_dir else ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._queue: queue.Queue[Transfer | KvHeld | QueuedTokens | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, daemon=True, name="ppd-kv-reporter")
        self._thread.start()

    def put(self, item: Transfer | KvHeld | QueuedTokens) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(item)

    def close(self) -> None:
        """Carry out what is pending, at most 2 s."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(2)
        self._socket.close()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._send(self._moved(item) if isinstance(item, Transfer) else item)

    def _moved(self, transfer: Transfer) -> KvMoved:
        trace_id = ""
        if self._tracer is not None and (transfer.bytes or transfer.error):
            context = emit_span(self._tracer, self._puller, transfer).get_span_context()
            trace_id = f"{context.trace_id:032x}" if context.is_valid else ""
        origin = transfer.origin
        return KvMoved(
            request_id=origin.request_id,
            worker_id=self._puller.worker_id,
            source_worker_id=origin.source_worker_id,
            direction=origin.direction,
            bytes=transfer.bytes,
            blocks=transfer.blocks,
            cached_blocks=origin.cached_blocks,
            descriptors=transfer.descriptors,
            transfer_s=transfer.transfer_s,
            post_s=transfer.post_s,
            wait_s=transfer.wait_s,
            rank=self._puller.rank,
            error=transfer.error,
            trace_id=trace_id,
        )

    def _send(self, report: Report) -> None:
        if self._address:
            with contextlib.suppress(OSError):  # the agent is away: its loss, not the engine's
                self._socket.sendto(pack(report), self._address)
