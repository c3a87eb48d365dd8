"""Where spans are exported, and how: `--otlp-endpoint` and OpenTelemetry's standard variables.

`OTEL_EXPORTER_OTLP_TRACES_…` wins over `OTEL_EXPORTER_OTLP_…`; an empty value counts as unset. The names and
their meanings are those of OpenTelemetry's "OTLP Exporter Configuration" and "SDK environment variables".
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

GRPC, HTTP = "grpc", "http/protobuf"
SAMPLERS = (
    *("always_on", "always_off", "traceidratio"),
    *("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
)
_HTTP_PORT = 4318
_TRACES_PATH = "/v1/traces"
_GENERAL, _TRACES = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"
_OPTIONS = (
    *("ENDPOINT", "PROTOCOL", "HEADERS", "TIMEOUT", "COMPRESSION", "INSECURE"),
    *("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"),
)
_COMPRESSIONS = {GRPC: ("none", "gzip"), HTTP: ("none", "gzip", "deflate")}
_DEFAULT_TIMEOUT_S = 10.0
_SECONDS_BELOW = 100
_HEADER = re.compile(r"[!#-'*+\-.0-9A-Z^-z|~]+\s*=\s*[ !#-+\--:<-\[\]-~]*")  # what OpenTelemetry's SDK parses


class OtlpError(ValueError):
    """A variable that cannot be used. The message names it, and repeats no secret."""


@dataclass(frozen=True, slots=True)
class OtlpExport:
    """An exporter's configuration, complete and checked."""

    endpoint: str  # over HTTP the whole URL
    protocol: str
    headers: str = field(default="", repr=False)  # `name=value,…`, values URL-encoded
    timeout_s: float = _DEFAULT_TIMEOUT_S
    compression: str = "none"
    certificate: str = ""
    client_key: str = ""
    client_certificate: str = ""

    @property
    def secure(self) -> bool:
        return self.endpoint.startswith("https://")

    def header_values(self) -> dict[str, str]:
        """The headers, decoded; names in lower case, as gRPC demands."""
        pairs = (item.partition("=") for item in self.headers.split(",") if item.strip())
        return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}

    def environment(self) -> dict[str, str]:
        """The variables with which vLLM, or another program with OpenTelemetry's Python SDK, exports the same
        way: vLLM reads some in their general form only, and the SDK reads the timeout in seconds."""
        values = {
            "HEADERS": self.headers,
            "TIMEOUT": f"{self.timeout_s:g}",
            "COMPRESSION": "" if self.compression == "none" else self.compression,  # gRPC's refuses "none"
            "CERTIFICATE": self.certificate,
            "CLIENT_KEY": self.client_key,
            "CLIENT_CERTIFICATE": self.client_certificate,
        }
        both = {form + name: value for form in (_GENERAL, _TRACES) for name, value in values.items() if value}
        return both | {_TRACES + "ENDPOINT": self.endpoint, _TRACES + "PROTOCOL": self.protocol}


def resolve(endpoint: str = "", env: Mapping[str, str] = os.environ) -> OtlpExport | None:
    """What `endpoint` and `env` ask for; None where nothing is to be exported. Raises OtlpError.

    `endpoint` wins over the variables' and is read as `OTEL_EXPORTER_OTLP_ENDPOINT` is: the base of a URL.
    Without a protocol, port 4318 and URLs with a path mean HTTP, all others gRPC.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if env.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    source, found = ("--otlp-endpoint", endpoint) if endpoint else _value(env, "ENDPOINT")
    if not found:
        return None
    check_sampler(env)
    parts = _parsed(source, found, plain=_value(env, "INSECURE")[1].lower() != "false")
    protocol = _protocol(env, parts)
    if protocol == GRPC:
        url = f"{parts.scheme}://{parts.netloc}"
    elif source.startswith(_TRACES):
        url = parts.geturl()
    else:
        base = parts._replace(query="", fragment="").geturl().rstrip("/")
        url = base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH
    return OtlpExport(
        endpoint=url,
        protocol=protocol,
        headers=_headers(*_value(env, "HEADERS")),
        timeout_s=_timeout_s(*_value(env, "TIMEOUT")),
        compression=_compression(*_value(env, "COMPRESSION"), protocol),
        certificate=_file(*_value(env, "CERTIFICATE")),
        client_key=_file(*_value(env, "CLIENT_KEY")),
        client_certificate=_file(*_value(env, "CLIENT_CERTIFICATE")),
    )


def check_sampler(env: Mapping[str, str] = os.environ) -> tuple[str, float]:
    """The sampler's name, empty where none is set, and its ratio. Raises OtlpError."""
    name = env.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if name and name not in SAMPLERS:
        raise OtlpError(f"OTEL_TRACES_SAMPLER={name!r} is not known: write one of {', '.join(SAMPLERS)}")
    given = env.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    if not given or not name.endswith("traceidratio"):
        return name, 1.0
    try:
        ratio = float(given)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise OtlpError(f"OTEL_TRACES_SAMPLER_ARG={given!r}: write a ratio from 0 to 1")
    return name, ratio


def without_otlp(env: Mapping[str, str]) -> dict[str, str]:
    """`env` without the exporter's variables."""
    names = {form + option for form in (_GENERAL, _TRACES) for option in _OPTIONS}
    return {name: value for name, value in env.items() if name not in names}


def named(service: str, instance: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that give a program's spans a service name and an instance; those that the user chose in
    `env` stay."""
    attributes = _attributes(env)
    found = {}
    if not env.get("OTEL_SERVICE_NAME") and "service.name" not in attributes:
        found["OTEL_SERVICE_NAME"] = service
    if "service.instance.id" not in attributes:
        found["OTEL_RESOURCE_ATTRIBUTES"] = _joined(
            attributes | {"service.instance.id": quote(instance, safe="")}
        )
    return found


def for_all_parts(env: Mapping[str, str]) -> dict[str, str]:
    """`env` for several services at once: a name given to all of them becomes their `service.namespace`, so
    that each keeps a name of its own."""
    attributes = _attributes(env)
    name = attributes.pop("service.name", "")
    name = quote(env.get("OTEL_SERVICE_NAME", ""), safe="") or name
    attributes.pop("service.instance.id", None)
    if name:
        attributes.setdefault("service.namespace", name)
    rest = {key: value for key, value in env.items() if key != "OTEL_SERVICE_NAME"}
    if attributes:
        return rest | {"OTEL_RESOURCE_ATTRIBUTES": _joined(attributes)}
    rest.pop("OTEL_RESOURCE_ATTRIBUTES", None)
    return rest


def _attributes(env: Mapping[str, str]) -> dict[str, str]:
    """Of the resource, values URL-encoded as they are given."""
    pairs = (item.partition("=") for item in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","))
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _joined(attributes: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in attributes.items())


def _value(env: Mapping[str, str], option: str) -> tuple[str, str]:
    """The variable that sets `option`, and its value."""
    for form in (_TRACES, _GENERAL):
        if value := env.get(form + option, "").strip():
            return form + option, value
    return _GENERAL + option, ""


def _parsed(source: str, endpoint: str, plain: bool) -> SplitResult:
    example = "write for example http://127.0.0.1:4318"
    if "://" not in endpoint:
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    if "@" in endpoint.partition("://")[2].partition("/")[0]:
        raise OtlpError(f"{source}: write no credentials into the URL, but into {_GENERAL}HEADERS")
    try:
        parts = urlsplit(endpoint)
        usable = parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise OtlpError(f"{source}: {endpoint!r} names no host and port: {example}")
    if parts.scheme not in ("http", "https"):
        raise OtlpError(f"{source}: {endpoint!r} begins with neither http:// nor https://: {example}")
    return parts


def _protocol(env: Mapping[str, str], parts: SplitResult) -> str:
    source, given = _value(env, "PROTOCOL")
    if given and given.lower() not in (GRPC, HTTP):
        raise OtlpError(f"{source}={given!r} is not supported: write {GRPC} or {HTTP}")
    if given:
        return given.lower()
    return HTTP if parts.port == _HTTP_PORT or parts.path.rstrip("/") else GRPC


def _headers(source: str, given: str) -> str:
    items = [item.strip() for item in given.split(",") if item.strip()]
    for number, item in enumerate(items, 1):
        if not _HEADER.fullmatch(item):
            raise OtlpError(f"{source}: entry {number} is not NAME=VALUE with the value URL-encoded")
    return ",".join(items)


def _timeout_s(source: str, given: str) -> float:
    """Milliseconds, as the specification has it. A value below 100 is read as seconds, as OpenTelemetry's
    Python SDK reads all values: nobody means to wait less than a tenth of a second."""
    if not given:
        return _DEFAULT_TIMEOUT_S
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise OtlpError(f"{source}={given!r}: write milliseconds, such as 10000")
    return value if value < _SECONDS_BELOW else value / 1e3


def _compression(source: str, given: str, protocol: str) -> str:
    if not given:
        return "none"
    if given.lower() not in (known := _COMPRESSIONS[protocol]):
        raise OtlpError(f"{source}={given!r} is not supported over {protocol}: write {' or '.join(known)}")
    return given.lower()


def _file(source: str, given: str) -> str:
    if given and not os.access(given, os.R_OK):
        raise OtlpError(f"{source}: {given} cannot be read")
    return given
