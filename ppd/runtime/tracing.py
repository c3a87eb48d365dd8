"""OpenTelemetry tracing: set up once per process, free of cost where nothing is exported."""

import atexit
import os
import socket
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, Tracer
from prometheus_client import Counter

from ppd.runtime import otlp
from ppd.runtime.otlp import OtlpExport

DROPPED = Counter("ppd_spans_dropped", "Spans that the collector did not take")

END_WITHIN_S = 2.0
_EVERY_MS = 500
_SAMPLERS = {
    "always_on": sampling.ALWAYS_ON,
    "always_off": sampling.ALWAYS_OFF,
    "parentbased_always_on": sampling.DEFAULT_ON,
    "parentbased_always_off": sampling.DEFAULT_OFF,
}


class _Exporter(SpanExporter):
    """Counts what is lost, and can be told to give up: the SDK waits for a collector that does not answer
    until each waiting batch has had its own timeout."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self._ended = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE if self._ended else self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            DROPPED.inc(len(spans))
        return result

    def shutdown(self) -> None:
        if not self._ended:
            self._ended = True
            self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True  # nothing waits here


class _Tracing:
    """One process' provider, with an end that is bounded."""

    def __init__(self, provider: TracerProvider, exporter: _Exporter) -> None:
        self.provider = provider
        self._exporter = exporter

    def end(self, within_s: float) -> None:
        ending = threading.Thread(target=self.provider.shutdown, daemon=True, name="ppd-tracing-end")
        ending.start()
        ending.join(within_s)
        if ending.is_alive():
            self._exporter.shutdown()  # the batch under way is given up, and the others are not tried


_tracing: _Tracing | None = None


def setup(
    service: str,
    export: OtlpExport,
    instance: str = "",
    sample_ratio: float | None = None,
    fixed_name: bool = False,
) -> Tracer:
    """The process' tracer, until `shutdown`.

    A new trace is sampled at `sample_ratio`, and where that is None as `OTEL_TRACES_SAMPLER` says; one that a
    caller began follows the caller's decision. Spans are exported in the background from a bounded queue
    (2,048), and dropped when the collector is away. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win
    over `service` and `instance`, but where `fixed_name` the name is `service`.
    """
    global _tracing
    exporter = _Exporter(_over_grpc(export) if export.protocol == otlp.GRPC else _over_http(export))
    provider = TracerProvider(
        resource=_resource(service, instance, fixed_name),
        sampler=_sampler(sample_ratio),
        shutdown_on_exit=False,  # it would wait without bound
    )
    delay_ms = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _EVERY_MS
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms))
    if _tracing is None:
        atexit.register(shutdown)
    _tracing = _Tracing(provider, exporter)
    return provider.get_tracer(service)


def shutdown(within_s: float = END_WITHIN_S) -> None:
    """Send what is pending, for `within_s` at most; what the collector has not taken by then is lost."""
    global _tracing
    tracing, _tracing = _tracing, None
    if tracing is not None:
        atexit.unregister(shutdown)
        tracing.end(within_s)


def _resource(service: str, instance: str, fixed_name: bool) -> Resource:
    ours = {
        "service.name": service,
        "service.instance.id": instance or f"{socket.gethostname()}-{os.getpid()}",
        "service.version": version("ppd"),
    }
    chosen = set(OTELResourceDetector().detect().attributes)
    if fixed_name:
        chosen.discard("service.name")
    return Resource.create({name: value for name, value in ours.items() if name not in chosen})


def _sampler(ratio: float | None) -> sampling.Sampler:
    if ratio is not None:
        return sampling.ParentBasedTraceIdRatio(ratio)
    name, ratio = otlp.check_sampler()
    if name.endswith("traceidratio"):
        ratio_of = sampling.TraceIdRatioBased if name == "traceidratio" else sampling.ParentBasedTraceIdRatio
        return ratio_of(ratio)
    return _SAMPLERS[name or "parentbased_always_on"]


def _over_http(export: OtlpExport) -> SpanExporter:
    import requests
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    class Session(requests.Session):
        def merge_environment_settings(self, *args: Any, **kwargs: Any) -> Any:
            """The collector's own CA wins over REQUESTS_CA_BUNDLE, which is every server's."""
            settings = super().merge_environment_settings(*args, **kwargs)
            return settings | {"verify": self.verify} if export.certificate else settings

    return OTLPSpanExporter(
        endpoint=export.endpoint,
        session=Session(),
        certificate_file=export.certificate or None,
        client_key_file=export.client_key or None,
        client_certificate_file=export.client_certificate or None,
        headers=export.header_values(),
        timeout=export.timeout_s,
        compression=Compression(export.compression),
    )


def _over_grpc(export: OtlpExport) -> SpanExporter:
    import grpc
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    def content(path: str) -> bytes | None:
        if not path:
            return None
        with open(path, "rb") as file:
            return file.read()

    credentials = None
    if export.secure:
        credentials = grpc.ssl_channel_credentials(
            content(export.certificate), content(export.client_key), content(export.client_certificate)
        )
    return OTLPSpanExporter(
        endpoint=export.endpoint,
        insecure=not export.secure,
        credentials=credentials,
        headers=export.header_values(),
        timeout=export.timeout_s,
        compression=grpc.Compression.Gzip if export.compression == "gzip" else grpc.Compression.NoCompression,
    )


def traceparent(span: Span) -> str:
    """The W3C `traceparent` of a span, empty where nothing is traced."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
