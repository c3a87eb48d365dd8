"""Spans reach a real collector over both protocols, and the end never waits for one that does not answer."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ppd.runtime import otlp, tracing
from tests.support.otlp import Certificates, GrpcSink, OtlpSink, SilentSink

pytestmark = pytest.mark.unit
SINKS = {otlp.HTTP: OtlpSink, otlp.GRPC: GrpcSink}
both_protocols = pytest.mark.parametrize("protocol", [otlp.HTTP, otlp.GRPC])
HANG_S = 60  # far beyond any bound: what does not return until then hangs


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    sinks: list[Any] = []

    def keep(sink: Any) -> Any:
        sinks.append(sink)
        return sink

    yield keep
    tracing.shutdown()
    for sink in sinks:
        sink.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def emit(env: dict[str, str], count: int = 1, **options: Any) -> None:
    """`count` traces of one span each, exported as `env` says."""
    export = otlp.resolve("", env)
    assert export is not None
    tracer = tracing.setup("ppd-test", export, **options)
    for _ in range(count):
        tracer.start_span("work").end()


@both_protocols
def test_spans_arrive_on_any_port_by_the_protocol_that_is_named(opened, protocol: str) -> None:
    sink = opened(SINKS[protocol]())
    emit({"OTEL_EXPORTER_OTLP_ENDPOINT": sink.base, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
    tracing.shutdown()
    (span,) = sink.spans("work")
    assert span.service == "ppd-test"
    assert span.resource["service.instance.id"]


@both_protocols
def test_headers_and_compression_arrive(opened, protocol: str) -> None:
    sink = opened(SINKS[protocol]())
    emit(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.base,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20abc,X-Scope=me",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        }
    )
    tracing.shutdown()
    assert len(sink.spans("work")) == 1
    (headers,) = sink.headers
    assert (headers["authorization"], headers["x-scope"]) == ("Bearer abc", "me")
    if protocol == otlp.HTTP:  # a gRPC server does not show its transport's encoding
        assert headers["content-encoding"] == "gzip"


def test_the_traces_endpoint_is_taken_as_it_is(opened) -> None:
    sink = opened(OtlpSink())
    emit({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{sink.base}/own/place"})
    tracing.shutdown()
    assert [headers["path"] for headers in sink.headers] == ["/own/place"]


@both_protocols
def test_tls_with_an_own_ca_and_a_client_certificate(
    opened, protocol: str, certificates: Certificates
) -> None:
    sink = opened(SINKS[protocol](certificates))
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.base,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificates.ca),
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": str(certificates.client_key),
        "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE": str(certificates.client),
    }
    emit(env)
    tracing.shutdown()
    assert len(sink.spans("work")) == 1


@both_protocols
def test_a_collector_with_a_certificate_of_another_ca_gets_nothing(
    opened, protocol: str, certificates: Certificates, tmp_path: Path
) -> None:
    sink = opened(SINKS[protocol](certificates))
    others = Certificates(tmp_path)
    before = tracing.DROPPED._value.get()
    emit(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.base,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": str(others.ca),
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(certificates.client_key),
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(certificates.client),
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }
    )
    tracing.shutdown(HANG_S)
    assert sink.spans("work") == []
    assert tracing.DROPPED._value.get() == before + 1


@both_protocols
@pytest.mark.parametrize("accepts", ["connections", "requests"])
def test_the_end_does_not_wait_for_a_collector_that_never_answers(
    opened, protocol: str, accepts: str
) -> None:
    """With more batches waiting than one, each of which might wait for an hour."""
    sink = opened(GrpcSink() if (protocol, accepts) == (otlp.GRPC, "requests") else SilentSink())
    if isinstance(sink, GrpcSink):
        sink.hold()
    emit(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.base,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3600000",
        },
        count=2000,
    )
    ending = threading.Thread(target=tracing.shutdown, daemon=True)
    ending.start()
    ending.join(HANG_S)
    assert not ending.is_alive()


_PROGRAM = """
import sys
from ppd.runtime import otlp, tracing
tracer = tracing.setup("x", otlp.resolve())
for _ in range(2000):
    tracer.start_span("work").end()
print("told", flush=True)
"""


@both_protocols
def test_a_process_that_ends_on_its_own_is_not_held_up_either(opened, protocol: str) -> None:
    sink = opened(SilentSink())
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.base,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3600000",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr


@pytest.mark.parametrize(
    ("sampler", "arg", "expected"),
    [
        ("always_off", "", 0),
        ("parentbased_traceidratio", "0", 0),
        ("traceidratio", "1", 20),
        ("parentbased_always_on", "", 20),
        ("", "", 20),
    ],
)
def test_the_standard_sampler_decides_where_no_ratio_is_given(
    opened, monkeypatch: pytest.MonkeyPatch, sampler: str, arg: str, expected: int
) -> None:
    sink = opened(OtlpSink())
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", arg)
    emit({"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}, 20)
    tracing.shutdown()
    assert len(sink.spans("work")) == expected


def test_an_own_ratio_wins_over_the_standard_sampler(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(OtlpSink())
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    emit({"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}, sample_ratio=1.0)
    tracing.shutdown()
    assert len(sink.spans("work")) == 1


@pytest.mark.parametrize(
    ("fixed_name", "service"), [(False, "mine"), (True, "ppd-test")], ids=["a service", "a part of an engine"]
)
def test_the_users_names_and_attributes_are_respected(
    opened, monkeypatch: pytest.MonkeyPatch, fixed_name: bool, service: str
) -> None:
    sink = opened(OtlpSink())
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.instance.id=one")
    emit({"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint}, instance="d0-1", fixed_name=fixed_name)
    tracing.shutdown()
    (span,) = sink.spans("work")
    assert span.service == service
    assert span.resource["service.instance.id"] == "one"
    assert span.resource["deployment.environment.name"] == "test"
