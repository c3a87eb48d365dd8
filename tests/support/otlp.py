"""OTLP collectors for tests: over HTTP and gRPC, with TLS, and one that never answers."""

import gzip
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

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
    resource: dict[str, Any] = field(default_factory=dict)


class _Sink:
    """Keeps every span that services and engines export, and the headers of each request."""

    def __init__(self) -> None:
        self._spans: list[SeenSpan] = []
        self._lock = threading.Lock()
        self.headers: list[dict[str, str]] = []

    def spans(self, name: str) -> list[SeenSpan]:
        with self._lock:
            return [span for span in self._spans if span.name == name]

    def wait_for(self, name: str, count: int, deadline_s: float = 30) -> list[SeenSpan]:
        """The spans of that name once there are `count`, or those that came until the deadline."""
        until_s = time.monotonic() + deadline_s
        while len(found := self.spans(name)) < count and time.monotonic() < until_s:
            time.sleep(0.05)
        return found

    def services(self) -> set[str]:
        with self._lock:
            return {span.service for span in self._spans}

    def _take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        with self._lock:
            self.headers.append(headers)
            for resource in request.resource_spans:
                about = _values(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self._spans += [_seen(about, span) for span in scope.spans]


class OtlpSink(_Sink):
    """OTLP over HTTP. `endpoint` is what `--otlp-endpoint` takes, `base` the same without the path."""

    def __init__(self, tls: "Certificates | None" = None) -> None:
        super().__init__()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()} | {"path": self.path}
                if headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                sink._take(ExportTraceServiceRequest.FromString(body), headers)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.server_context().wrap_socket(self._server.socket, server_side=True)
        self.base = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return self.base + "/v1/traces"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class GrpcSink(_Sink, service.TraceServiceServicer):
    """OTLP over gRPC; `hold()` makes it take requests and not answer."""

    def __init__(self, tls: "Certificates | None" = None) -> None:
        super().__init__()
        self._answers = threading.Event()
        self._answers.set()
        self._server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="otlp-sink"))
        service.add_TraceServiceServicer_to_server(self, self._server)
        if tls is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", tls.server_credentials())
        self.base = self.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        self._server.start()

    def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> Any:
        headers = {key: str(value) for key, value in context.invocation_metadata()}
        self._take(request, headers)
        self._answers.wait(60)
        return ExportTraceServiceResponse()

    def hold(self) -> None:
        self._answers.clear()

    def close(self) -> None:
        self._answers.set()
        self._server.stop(0)


class SilentSink:
    """Accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._taken: list[socket.socket] = []
        self.asked = threading.Event()
        self.base = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                self._taken.append(self._socket.accept()[0])
            except OSError:
                return
            self.asked.set()

    def close(self) -> None:
        self._socket.close()
        for each in self._taken:
            each.close()


class Certificates:
    """A CA of its own in `folder`, with a server's and a client's certificate."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca, ca_key = folder / "ca.pem", folder / "ca.key"
        extensions = folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        _openssl("req", "-x509", *key, "-keyout", ca_key, "-out", self.ca, "-days", "2", "-subj", "/CN=ca")
        for name in ("server", "client"):
            request = folder / f"{name}.csr"
            _openssl("req", *key, "-keyout", folder / f"{name}.key", "-out", request, "-subj", f"/CN={name}")
            _openssl(
                *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", ca_key, "-CAcreateserial"),
                *("-out", folder / f"{name}.pem", "-days", "2", "-extfile", extensions),
            )
        self.server, self.server_key = folder / "server.pem", folder / "server.key"
        self.client, self.client_key = folder / "client.pem", folder / "client.key"

    def server_context(self) -> ssl.SSLContext:
        """Of a server that asks clients for a certificate of this CA."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.load_cert_chain(self.server, self.server_key)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def server_credentials(self) -> grpc.ServerCredentials:
        pair = (self.server_key.read_bytes(), self.server.read_bytes())
        return grpc.ssl_server_credentials([pair], self.ca.read_bytes(), require_client_auth=True)


def _openssl(*args: object) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _seen(resource: dict[str, Any], span: Any) -> SeenSpan:
    return SeenSpan(
        resource.get("service.name", ""),
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _values(span.attributes),
        span.status.code,
        span.status.message,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        tuple(event.name for event in span.events),
        tuple(link.trace_id.hex() for link in span.links),
        resource,
    )
