"""Real NIXL reads in this process, as a hand-off makes them: bare, followed, and followed and traced."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from workers.connector.progress import sleep_between_polls
from workers.connector.reporter import Reporter
from workers.connector.spans import Puller
from workers.connector.transfers import Origin, Transfer, TransferBook

PARAMS = {"ppd_request_id": "r" * 32, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "ppd_worker_id": "p0-1"}
_DESCRIPTORS, _EACH_BYTES = 64, 512 * 1024  # 256 tokens of Llama-3.1-8B: 32 layers, K and V
_STEP_S = 0.005  # between two reads the engine computes, and the reporter's thread has its turn

Read = Callable[[], float]  # makes one read; its seconds


def size_bytes() -> int:
    """Of one read."""
    return _DESCRIPTORS * _EACH_BYTES


class Link:
    """Two agents, and the descriptors of what one reads from the other."""

    def __init__(self) -> None:
        sleep_between_polls(10)  # as on a CPU: two threads that spin would be measured instead
        settings = nixl_agent_config(backends=["UCX"], capture_telemetry=True)
        self.puller = nixl_agent("bench-d", settings)
        source = nixl_agent("bench-p", settings)
        self._memory = [np.ones((_DESCRIPTORS, _EACH_BYTES), np.uint8) for _ in range(2)]
        rows = [
            [(memory[i].ctypes.data, _EACH_BYTES, 0) for i in range(_DESCRIPTORS)] for memory in self._memory
        ]
        for agent, mine in ((self.puller, rows[0]), (source, rows[1])):
            agent.register_memory([(*row, "") for row in mine], mem_type="DRAM")
        self.peer = self.puller.add_remote_agent(source.get_agent_metadata())
        self._source = source
        self.local = self.puller.get_xfer_descs(rows[0], mem_type="DRAM")
        self.remote = self.puller.get_xfer_descs(rows[1], mem_type="DRAM")

    def post(self) -> Any:
        handle = self.puller.initialize_xfer("READ", self.local, self.remote, self.peer)
        self.puller.transfer(handle)
        return handle

    def reap(self, handle: Any) -> Any:
        """NIXL's telemetry of the read, once it is complete."""
        while (state := self.puller.check_xfer_state(handle)) != "DONE":
            if state == "ERR":
                raise RuntimeError("the read failed")
        telemetry = self.puller.get_xfer_telemetry(handle)
        self.puller.release_xfer_handle(handle)
        return telemetry


def bare(link: Link) -> Read:
    def read() -> float:
        began_s = time.perf_counter()
        link.reap(link.post())
        return time.perf_counter() - began_s

    return read


@contextmanager
def followed(link: Link, tracer: Tracer | None) -> Iterator[Read]:
    """With the connector's part around each read."""
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        reporter = Reporter(Puller("d0-1", "engine-d", 0, "UCX"), tracer, Path(folder))
        book = TransferBook(reporter.put)

        def read() -> float:
            began_s = time.perf_counter()
            request_id = str(number := next(numbers))
            book.begin(request_id, Transfer(Origin.of(PARAMS, 2), "engine-p", 8))
            transfer = book.posting(request_id)
            handle = link.post()
            if transfer is not None:
                transfer.post_s = time.perf_counter() - transfer.posted_s
                book.reading(number, transfer)
            told = link.reap(handle)
            book.measured(number, told.totalBytes, told.descCount, told.xferDuration / 1e6)
            book.end(request_id)
            return time.perf_counter() - began_s

        yield read
        reporter.close()


def compare(blocks: int = 21, reads: int = 15) -> dict[str, list[float]]:
    """For each way, the median seconds of each block of reads; the ways take turns."""
    link = Link()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter(), schedule_delay_millis=500))
    with followed(link, None) as untraced, followed(link, provider.get_tracer("bench")) as traced:
        ways = {"bare": bare(link), "untraced": untraced, "traced": traced}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(blocks):
            names = list(ways)
            for name in names[number % 3 :] + names[: number % 3]:
                found[name].append(statistics.median(_read_after_step(ways[name]) for _ in range(reads)))
    return found


def _read_after_step(read: Read) -> float:
    time.sleep(_STEP_S)
    return read()
