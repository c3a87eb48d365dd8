"""A turn's spans as a tree, and where its time went. Pure; all times in microseconds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ppd.cli.trace.jaeger import JaegerSpan, JaegerTrace
from ppd.core import names

# What the time of a span, and of all that it holds and nothing else claims, is called.
PHASES = {
    names.SPAN_ROUTE: "route",
    names.SPAN_PREFILL: "prefill",
    names.SPAN_DECODE: "decode",
    names.SPAN_KV_TRANSFER: "KV transfer",
}
FRONTEND = "frontend"


@dataclass(slots=True)
class Span:
    name: str
    service: str
    start_us: int
    duration_us: int
    tags: dict[str, Any]
    events: list[tuple[int, str]]  # when, and its name
    links: list[str]  # trace ids: of a turn, the one before it in the conversation
    children: list["Span"] = field(default_factory=list)

    @property
    def end_us(self) -> int:
        return self.start_us + self.duration_us

    @property
    def error(self) -> str:
        """Why it failed; empty if it did not."""
        if self.tags.get("error") in (True, "true") or self.tags.get("otel.status_code") == "ERROR":
            return str(self.tags.get("otel.status_description") or "failed")
        return ""

    def walk(self, depth: int = 0) -> Iterator[tuple[int, "Span"]]:
        """This span and all below it, each with its depth, as a tree is read."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


@dataclass(slots=True)
class TracedTurn:
    """One trace; `root` is the frontend's server span, or the earliest where that is missing."""

    trace_id: str
    root: Span
    orphans: list[Span]  # whose parent is not in the trace

    def spans(self) -> list[tuple[int, Span]]:
        """All spans with their depth."""
        return [item for top in (self.root, *self.orphans) for item in top.walk()]

    @property
    def transfers(self) -> list[Span]:
        return [span for _, span in self.spans() if span.name == names.SPAN_KV_TRANSFER]

    @property
    def start_us(self) -> int:
        return min(span.start_us for _, span in self.spans())

    @property
    def end_us(self) -> int:
        return max(span.end_us for _, span in self.spans())

    @property
    def kv_bytes(self) -> int:
        return sum(int(span.tags.get("kv.bytes", 0)) for span in self.transfers)


def build(trace: JaegerTrace) -> TracedTurn:
    """Raises ValueError for a trace without spans."""
    if not trace.spans:
        raise ValueError(f"trace {trace.traceID} has no spans")
    spans = {raw.spanID: _span(raw, trace) for raw in trace.spans}
    tops: list[Span] = []
    for raw in trace.spans:
        parent = next(
            (
                spans[ref.spanID]
                for ref in raw.references or []
                if _is_parent(ref.refType) and ref.spanID in spans
            ),
            None,
        )
        (tops if parent is None else parent.children).append(spans[raw.spanID])
    for span in spans.values():
        span.children.sort(key=lambda each: (each.start_us, -each.duration_us))
    tops.sort(key=lambda each: (each.tags.get("span.kind") != "server", each.start_us))
    return TracedTurn(trace.traceID, tops[0], tops[1:])


def _is_parent(kind: str) -> bool:
    return kind == "CHILD_OF"


def _span(raw: JaegerSpan, trace: JaegerTrace) -> Span:
    process = trace.processes.get(raw.processID)
    events = []
    for log in raw.logs or []:
        named = next((str(item.value) for item in log.fields if item.key == "event"), "")
        events.append((log.timestamp, named))
    return Span(
        name=raw.operationName,
        service=process.serviceName if process else "",
        start_us=raw.startTime,
        duration_us=raw.duration,
        tags={tag.key: tag.value for tag in raw.tags or []},
        events=events,
        links=[ref.traceID for ref in raw.references or [] if ref.refType == "FOLLOWS_FROM"],
    )


def phases(turn: TracedTurn) -> dict[str, int]:
    """Microseconds of the root span by phase; their sum is its duration.

    Each moment belongs to the innermost span that is open then. Spans of other machines are cut to the
    root's, since clocks differ.
    """
    root = turn.root
    open_spans = [
        (depth, phase, max(span.start_us, root.start_us), min(span.end_us, root.end_us))
        for depth, phase, span in _with_phase(root, 0, FRONTEND)
    ]
    cuts = sorted({cut for _, _, start, end in open_spans for cut in (start, end)})
    spent: dict[str, int] = {}
    for start, end in pairwise(cuts):
        claims = [
            (depth, began, phase)
            for depth, phase, began, ended in open_spans
            if began <= start and end <= ended
        ]
        if claims:
            phase = max(claims)[2]
            spent[phase] = spent.get(phase, 0) + end - start
    return spent


def _with_phase(span: Span, depth: int, phase: str) -> Iterator[tuple[int, str, Span]]:
    own = PHASES.get(span.name, phase)
    yield depth, own, span
    for child in span.children:
        yield from _with_phase(child, depth + 1, own)
