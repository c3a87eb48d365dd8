"""One `kv.transfer` span for a finished transfer, in the trace of the turn that caused it."""

from dataclasses import dataclass

from opentelemetry.trace import Span, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ppd.core.names import SPAN_KV_TRANSFER
from workers.connector.transfers import Transfer

_propagator = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class Puller:
    """The engine process that pulls: the same in all of its spans."""

    worker_id: str
    engine_id: str
    rank: int
    backend: str


def emit_span(tracer: Tracer, puller: Puller, transfer: Transfer) -> Span:
    """Make the span, with the times at which things happened, and end it."""
    origin = transfer.origin
    span = tracer.start_span(
        SPAN_KV_TRANSFER,
        context=_propagator.extract({"traceparent": origin.traceparent}),
        start_time=transfer.began_unix_ns,
        attributes={
            "kv.direction": origin.direction,
            "kv.bytes": transfer.bytes,
            "kv.blocks": transfer.blocks,
            "kv.descriptors": transfer.descriptors,
            "kv.cached_blocks": origin.cached_blocks,
            "kv.reads": transfer.reads,
            "kv.source.engine_id": transfer.source_engine_id,
            "kv.destination.engine_id": puller.engine_id,
            "kv.source.worker_id": origin.source_worker_id,
            "kv.destination.worker_id": puller.worker_id,
            "kv.tp_rank": puller.rank,
            "kv.backend": puller.backend,
            "kv.wait_s": transfer.wait_s,
            "kv.post_s": transfer.post_s,
            "kv.transfer_s": transfer.transfer_s,
            "kv.gb_per_s": _gb_per_s(transfer),
            "ppd.request_id": origin.request_id,
        },
    )
    if transfer.posted_s:
        span.add_event("posted", timestamp=_unix_ns(transfer, transfer.posted_s))
    if transfer.error:
        span.set_attribute("error.type", transfer.error.partition(":")[0])
        span.set_status(Status(StatusCode.ERROR, transfer.error))
    span.end(_unix_ns(transfer, transfer.ended_s))
    return span


def _unix_ns(transfer: Transfer, at_s: float) -> int:
    return transfer.began_unix_ns + int((at_s - transfer.began_s) * 1e9)


def _gb_per_s(transfer: Transfer) -> float:
    return transfer.bytes / transfer.transfer_s / 1e9 if transfer.transfer_s else 0.0
