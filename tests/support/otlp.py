"""An OTLP/HTTP collector for tests: keeps every span that services and engines export."""

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ERROR = 2  # Status.STATUS_CODE_ERROR


@dataclass(frozen=True)
class SeenSpan:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    status: int
    message: str
    start_ns: int
    end_ns: int
    events: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  # trace ids


class OtlpSink:
    """`endpoint` is what `--otlp-endpoint` takes."""

    def __init__(self) -> None:
        self._spans: list[SeenSpan] = []
        self._lock = threading.Lock()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                sink._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def spans(self, name: str) -> list[SeenSpan]:
        with self._lock:
            return [span for span in self._spans if span.name == name]

    def wait_for(self, name: str, count: int, deadline_s: float = 30) -> list[SeenSpan]:
        """The spans of that name once there are `count`, or those that came until the deadline."""
        until_s = time.monotonic() + deadline_s
        while len(found := self.spans(name)) < count and time.monotonic() < until_s:
            time.sleep(0.05)
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            service = next(
                (a.value.string_value for a in resource.resource.attributes if a.key == "service.name"), ""
            )
            for scope in resource.scope_spans:
                with self._lock:
                    self._spans += [_seen(service, span) for span in scope.spans]


def _seen(service: str, span: Any) -> SeenSpan:
    attributes = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
    return SeenSpan(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        attributes,
        span.status.code,
        span.status.message,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        tuple(event.name for event in span.events),
        tuple(link.trace_id.hex() for link in span.links),
    )
