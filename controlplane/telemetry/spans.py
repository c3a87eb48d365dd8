"""The spans of a turn. With tracing off no span is made."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ppd.core.names import SPAN_ROUTE
from ppd.runtime.tracing import traceparent

_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_propagator = TraceContextTextMapPropagator()
_OFF: Span = NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)
_NOTHING = nullcontext(_OFF)


class Spans:
    """One turn's trace: a server span, and the legs under it."""

    def __init__(
        self,
        tracer: Tracer | None,
        headers: Mapping[bytes, bytes],
        name: str,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """`name` and `attributes`: those of the server span. Without a tracer nothing is made."""
        self._tracer = tracer
        given = headers.get(b"traceparent")
        self._from_client = given.decode() if given and _TRACEPARENT.fullmatch(given) else ""
        state = headers.get(b"tracestate", b"") if self._from_client else b""
        self._state_from_client = state.decode() if _TRACESTATE.fullmatch(state) else ""
        self.server = _OFF
        self._routes: list[tuple[Span, int]] = []  # decided, with the time; ended with the turn
        if tracer is not None:
            carrier = {"traceparent": self._from_client, "tracestate": self._state_from_client}
            context = _propagator.extract(carrier) if self._from_client else None
            self.server = tracer.start_span(
                name, context=context, kind=SpanKind.SERVER, attributes=attributes
            )

    @property
    def trace_id(self) -> str:
        if self._tracer is None:
            return ""
        context = self.server.get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else ""

    @property
    def recording(self) -> bool:
        """Whether the spans are recorded, so that setting attributes is worth its cost."""
        return self.server.is_recording()

    def leg(self, name: str, attributes: dict[str, Any] | None = None) -> AbstractContextManager[Span]:
        """A child of the server span. An exception marks it as failed."""
        return _NOTHING if self._tracer is None else self._leg(self._tracer, name, attributes)

    @contextmanager
    def _leg(self, tracer: Tracer, name: str, attributes: dict[str, Any] | None) -> Iterator[Span]:
        context = trace.set_span_in_context(self.server)
        span = tracer.start_span(name, context=context, attributes=attributes)
        try:
            with _failures_marked(span):
                yield span
        finally:
            span.end()

    def route(self) -> AbstractContextManager[Span]:
        """Like `leg`, for a decision: it stays open until the turn ends, so that the outcome can be added."""
        return _NOTHING if self._tracer is None else self._route(self._tracer)

    @contextmanager
    def _route(self, tracer: Tracer) -> Iterator[Span]:
        span = tracer.start_span(SPAN_ROUTE, context=trace.set_span_in_context(self.server))
        try:
            with _failures_marked(span):
                yield span
        finally:
            self._routes.append((span, time.time_ns()))

    def needless_transfer(self, direction: str) -> None:
        """An event for a transfer that moved nothing because everything was there: it has no span."""
        if self._routes:
            self._routes[-1][0].add_event("kv.nothing_to_transfer", {"kv.direction": direction})

    def event(self, name: str, attributes: dict[str, Any] | None = None) -> None:
        """Something that happened to the turn, now."""
        if self._tracer is not None:
            self.server.add_event(name, attributes)

    def follow(self, last: str) -> None:
        """Link the turn to the previous one, by that turn's `traceparent`."""
        if last and self.server.is_recording():
            before = trace.get_current_span(_propagator.extract({"traceparent": last})).get_span_context()
            if before.trace_flags.sampled:
                self.server.add_link(before, {"ppd.link": "previous-turn"})

    def parent_of(self, span: Span) -> str:
        """The `traceparent` for an engine: under `span`, or the client's own where tracing is off."""
        return (self._tracer and traceparent(span)) or self._from_client

    def headers(self, span: Span) -> str:
        """Header lines by which an engine's spans join the trace, under `span`."""
        parent = self.parent_of(span)
        if not parent:
            return ""
        state = span.get_span_context().trace_state.to_header() or self._state_from_client
        lines = f"traceparent: {parent}\r\n"
        return f"{lines}tracestate: {state}\r\n" if state else lines

    def end(self, status: int, error_type: str, attributes: dict[str, Any]) -> None:
        """`error_type`: a bounded label; empty where the request did not fail."""
        if self._tracer is None:
            return
        for span, decided_ns in self._routes:
            span.end(decided_ns)
        self.server.set_attributes({"http.response.status_code": status, **attributes})
        if status >= 400:
            self.server.set_attribute("error.type", error_type or str(status))
        if status >= 500:
            self.server.set_status(Status(StatusCode.ERROR))
        self.server.end()


@contextmanager
def _failures_marked(span: Span) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        raise
