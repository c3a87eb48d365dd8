"""The book of transfers under way in one engine process: no vLLM in it, and no tracing."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ppd.core.names import KV_REQUEST_ID, KV_TRACEPARENT

WORKER_ID = "ppd_worker_id"  # of the engine that wrote the parameters

_MOST = 10_000  # open transfers; far more than an engine has requests
_OVERDUE_S = 120.0


@dataclass(frozen=True, slots=True)
class Origin:
    """What the parameters of a turn say of it."""

    request_id: str
    traceparent: str
    source_worker_id: str
    direction: str  # p-d or d-p
    cached_blocks: int

    @staticmethod
    def of(params: Mapping[str, object], cached_blocks: int) -> "Origin":
        """`params` are the request's `kv_transfer_params`: a prefill engine that pulls will be read from."""
        return Origin(
            request_id=str(params.get(KV_REQUEST_ID) or ""),
            traceparent=str(params.get(KV_TRACEPARENT) or ""),
            source_worker_id=str(params.get(WORKER_ID) or ""),
            direction="d-p" if params.get("do_remote_decode") else "p-d",
            cached_blocks=cached_blocks,
        )


@dataclass(slots=True)
class Transfer:
    """One request's pull on one rank, from the hand-off's start to its completion."""

    origin: Origin
    source_engine_id: str
    blocks: int
    began_unix_ns: int = field(default_factory=time.time_ns)
    began_s: float = field(default_factory=time.perf_counter)  # of the monotonic clock, as all below
    posted_s: float = 0.0  # when the first read was posted; 0 = not yet
    ended_s: float = 0.0
    post_s: float = 0.0  # spent posting, as measured here
    transfer_s: float = 0.0  # the longest read, as NIXL measured it
    bytes: int = 0
    descriptors: int = 0
    reads: int = 0
    error: str = ""

    @property
    def wait_s(self) -> float:
        """From the hand-off's start to the first post; of all its time if none was posted."""
        return (self.posted_s or self.ended_s) - self.began_s


class TransferBook:
    """Transfers by vLLM's request id. `finished` gets each of them exactly once."""

    def __init__(self, finished: Callable[[Transfer], None], overdue_s: float = _OVERDUE_S) -> None:
        self._open: dict[str, Transfer] = {}
        self._by_handle: dict[int, Transfer] = {}
        self._finished = finished
        self._overdue_s = overdue_s

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, request_id: str, transfer: Transfer) -> None:
        if len(self._open) >= _MOST:
            self.end(next(iter(self._open)), "abandoned: too many transfers are open")
        self._open[request_id] = transfer

    def posting(self, request_id: str) -> Transfer | None:
        """A read is about to be posted."""
        transfer = self._open.get(request_id)
        if transfer is not None and not transfer.posted_s:
            transfer.posted_s = time.perf_counter()
        return transfer

    def reading(self, handle: int, transfer: Transfer) -> None:
        """The read of `handle` is part of `transfer`."""
        self._by_handle[handle] = transfer

    def measured(self, handle: int, size_bytes: int, descriptors: int, transfer_s: float) -> None:
        """NIXL's telemetry of a completed read."""
        transfer = self._by_handle.pop(handle, None)
        if transfer is not None:
            transfer.bytes += size_bytes
            transfer.descriptors += descriptors
            transfer.reads += 1
            transfer.transfer_s = max(transfer.transfer_s, transfer_s)

    def blame(self, request_id: str | None, cause: str) -> None:
        """Remember why a transfer will fail; the first cause stays. From any thread."""
        transfer = self._open.get(request_id or "")
        if transfer is not None and not transfer.error:
            transfer.error = cause

    def end(self, request_id: str, error: str = "") -> None:
        """The transfer is over: with `error`, unless a cause is known already, if it failed."""
        transfer = self._open.pop(request_id, None)
        if transfer is None:
            return
        transfer.ended_s = time.perf_counter()
        transfer.error = transfer.error or error
        for handle in [h for h, t in self._by_handle.items() if t is transfer]:
            del self._by_handle[handle]
        self._finished(transfer)

    def check_overdue(self) -> None:
        """End, as failed, what has been open for too long. Cheap: looks at the oldest alone."""
        while self._open:
            request_id, oldest = next(iter(self._open.items()))
            if time.perf_counter() - oldest.began_s < self._overdue_s:
                return
            self.end(request_id, f"timed out: not complete after {self._overdue_s:g} s")
