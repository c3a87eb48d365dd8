"""What the flag and OpenTelemetry's standard variables mean for the exporter."""

import pytest

from ppd.runtime import otlp
from ppd.runtime.otlp import GRPC, HTTP, OtlpError, resolve

pytestmark = pytest.mark.unit
BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


@pytest.mark.parametrize(
    ("given", "env", "endpoint", "protocol"),
    [
        ("http://c:4317", {}, "http://c:4317", GRPC),
        ("c:4317", {}, "http://c:4317", GRPC),
        ("https://c:4317", {}, "https://c:4317", GRPC),
        ("http://[::1]:4317/", {}, "http://[::1]:4317", GRPC),
        ("http://c:4318", {}, "http://c:4318/v1/traces", HTTP),
        ("http://c:9/v1/traces", {}, "http://c:9/v1/traces", HTTP),
        ("http://c:9/otlp/", {}, "http://c:9/otlp/v1/traces", HTTP),
        ("http://c:9", {PROTOCOL: HTTP}, "http://c:9/v1/traces", HTTP),
        ("http://c:4318", {PROTOCOL: GRPC}, "http://c:4318", GRPC),
        ("", {BASE: "http://c:9", PROTOCOL: HTTP}, "http://c:9/v1/traces", HTTP),
        ("", {BASE: "http://c:4317", TRACES: "http://t:4318/own"}, "http://t:4318/own", HTTP),
        ("", {TRACES: "http://t:9", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": HTTP}, "http://t:9", HTTP),
        ("", {BASE: "http://c:9", PROTOCOL: HTTP, TRACES: "  "}, "http://c:9/v1/traces", HTTP),
        ("http://c:4317", {BASE: "http://other:1", TRACES: "http://other:2"}, "http://c:4317", GRPC),
        ("c:4317", {"OTEL_EXPORTER_OTLP_INSECURE": "false"}, "https://c:4317", GRPC),
        (
            "http://c:9",
            {PROTOCOL: GRPC, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": HTTP},
            "http://c:9/v1/traces",
            HTTP,
        ),
    ],
)
def test_endpoint_and_protocol(given: str, env: dict[str, str], endpoint: str, protocol: str) -> None:
    export = resolve(given, env)
    assert export is not None
    assert (export.endpoint, export.protocol) == (endpoint, protocol)


@pytest.mark.parametrize(
    ("given", "env"),
    [
        ("", {}),
        ("", {BASE: ""}),
        ("http://c:4317", {"OTEL_SDK_DISABLED": "TRUE"}),
        ("http://c:4317", {"OTEL_TRACES_EXPORTER": "none"}),
    ],
)
def test_nothing_is_exported(given: str, env: dict[str, str]) -> None:
    assert resolve(given, env) is None


@pytest.mark.parametrize(
    ("given", "env", "said"),
    [
        ("http://c:port", {}, "--otlp-endpoint"),
        ("http://c:70000", {}, "--otlp-endpoint"),
        ("http://:4317", {}, "--otlp-endpoint"),
        ("http://[::1", {}, "--otlp-endpoint"),
        ("grpc://c:4317", {}, "http://"),
        ("", {BASE: "http://c:port"}, BASE),
        ("", {TRACES: "http://c:port"}, TRACES),
        ("c:1", {PROTOCOL: "http/json"}, "http/protobuf"),
        ("c:1", {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"),
        ("c:1", {"OTEL_EXPORTER_OTLP_TIMEOUT": "0"}, "OTEL_EXPORTER_OTLP_TIMEOUT"),
        ("c:1", {"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "gzip"),
        ("c:4317", {"OTEL_EXPORTER_OTLP_COMPRESSION": "deflate"}, "over grpc"),
        ("c:1", {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such.pem"}, "/no/such.pem"),
        ("c:1", {"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": "/no.key"}, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"),
        ("c:1", {"OTEL_TRACES_SAMPLER": "sometimes"}, "parentbased_traceidratio"),
        ("c:1", {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "from 0 to 1"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(given: str, env: dict[str, str], said: str) -> None:
    with pytest.raises(OtlpError, match=r"^[^\n]*$") as error:
        resolve(given, env)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("given", "env"),
    [
        ("http://user:s3cret@c:4317", {}),
        ("http://user:s3cret@c:port", {}),
        ("c:1", {"OTEL_EXPORTER_OTLP_HEADERS": "a=b,s3cret"}),
        ("c:1", {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic s3cret;x"}),
    ],
)
def test_no_error_repeats_a_secret(given: str, env: dict[str, str]) -> None:
    with pytest.raises(OtlpError) as error:
        resolve(given, env)
    assert "s3cret" not in str(error.value)


def test_headers_are_decoded_and_hidden() -> None:
    export = resolve("c:1", {"OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20s3cret, x-scope = a=b"})
    assert export is not None
    assert export.header_values() == {"authorization": "Bearer s3cret", "x-scope": "a=b"}
    assert "s3cret" not in repr(export)


@pytest.mark.parametrize(("given", "timeout_s"), [("2500", 2.5), ("10", 10.0), ("", 10.0)])
def test_a_timeout_is_in_milliseconds_or_as_the_sdk_has_it(given: str, timeout_s: float) -> None:
    export = resolve("c:1", {"OTEL_EXPORTER_OTLP_TIMEOUT": given})
    assert export is not None
    assert export.timeout_s == timeout_s


def test_the_traces_form_of_a_variable_wins() -> None:
    env = {
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "b=2",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
    }
    export = resolve("c:1", env)
    assert export is not None
    assert (export.header_values(), export.compression) == ({"b": "2"}, "gzip")


def test_another_program_resolves_its_environment_to_the_same() -> None:
    env = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:9/own",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "250",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=%20b",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": __file__,
    }
    export = resolve("", env)
    assert export is not None
    passed = export.environment()
    assert resolve("", passed) == export
    # vLLM's gRPC exporter reads the general form, and refuses "none".
    assert passed["OTEL_EXPORTER_OTLP_CERTIFICATE"] == __file__
    assert passed["OTEL_EXPORTER_OTLP_TIMEOUT"] == "0.25"
    assert not [name for name in passed if "COMPRESSION" in name]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, {"OTEL_SERVICE_NAME": "ppd-decode", "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=d0-1"}),
        ({"OTEL_SERVICE_NAME": "mine"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=d0-1"}),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,a=b%2C"},
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine,a=b%2C,service.instance.id=d0-1"},
        ),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=x"}, {"OTEL_SERVICE_NAME": "ppd-decode"}),
    ],
)
def test_a_program_is_named_where_the_user_did_not(env: dict[str, str], expected: dict[str, str]) -> None:
    assert otlp.named("ppd-decode", "d0-1", env) == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"A": "1"}, {"A": "1"}),
        ({"OTEL_SERVICE_NAME": "my chat"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.namespace=my%20chat"}),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=x,service.instance.id=1,a=b"},
            {"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.namespace=x"},
        ),
        (
            {"OTEL_SERVICE_NAME": "x", "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=y"},
            {"OTEL_RESOURCE_ATTRIBUTES": "service.namespace=y"},
        ),
    ],
)
def test_one_name_for_all_parts_is_their_namespace(env: dict[str, str], expected: dict[str, str]) -> None:
    assert otlp.for_all_parts(env) == expected
