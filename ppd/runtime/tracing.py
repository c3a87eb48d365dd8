"""OpenTelemetry tracing: set up once per process, free of cost when no endpoint is given."""

from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, Tracer

_provider: TracerProvider | None = None


def http_url(endpoint: str) -> str:
    """Where OTLP over HTTP goes, for port 4318 or a URL with a path; empty where gRPC is meant."""
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    if parts.port != 4318 and not parts.path.rstrip("/"):
        return ""
    url = parts.geturl().rstrip("/")
    return url if url.endswith("/v1/traces") else url + "/v1/traces"


def _exporter(endpoint: str) -> SpanExporter:
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    if url := http_url(endpoint):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http(endpoint=url, timeout=5)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

    return Grpc(endpoint=parts.geturl(), insecure=parts.scheme != "https", timeout=5)


def setup(service: str, endpoint: str, instance: str = "", sample_ratio: float = 1.0) -> Tracer:
    """The service's tracer; one that records nothing where `endpoint` is empty.

    A new trace is sampled at `sample_ratio`; one that a caller began follows the caller's decision. Spans
    are exported in the background from a bounded queue (2,048), dropped when the collector is away.
    """
    global _provider
    if not endpoint:
        return trace.NoOpTracerProvider().get_tracer(service)
    resource = Resource.create({"service.name": service, "service.instance.id": instance or service})
    _provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(sample_ratio)))
    _provider.add_span_processor(BatchSpanProcessor(_exporter(endpoint), schedule_delay_millis=500))
    return _provider.get_tracer(service)


def shutdown() -> None:
    """Send what is pending, at most 2 s."""
    global _provider
    provider, _provider = _provider, None
    if provider is not None:
        provider.force_flush(2000)
        provider.shutdown()


def traceparent(span: Span) -> str:
    """The W3C `traceparent` of a span, empty where nothing is traced."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
