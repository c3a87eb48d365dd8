"""Receives spans as OTLP over gRPC on port 4317, and answers `GET /api/traces…` on 16686 as Jaeger does."""

import asyncio
import json
from collections import OrderedDict
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_MAX_TRACES = 20_000
_KINDS = {
    Span.SPAN_KIND_SERVER: "server",
    Span.SPAN_KIND_CLIENT: "client",
    Span.SPAN_KIND_INTERNAL: "internal",
}


def tag(item: KeyValue) -> dict[str, Any]:
    kind = item.value.WhichOneof("value") or "string_value"
    types = {"int_value": "int64", "double_value": "float64", "bool_value": "bool"}
    value = getattr(item.value, kind)
    return {
        "key": item.key,
        "type": types.get(kind, "string"),
        "value": value if kind in types else str(value),
    }


def jaeger_span(span: Span) -> dict[str, Any]:
    """`span` as Jaeger's JSON has it: times in microseconds, kind and status among the tags."""
    tags = [tag(item) for item in span.attributes]
    tags.append({"key": "span.kind", "type": "string", "value": _KINDS.get(span.kind, "internal")})
    if span.status.code == 2:
        tags.append({"key": "error", "type": "bool", "value": True})
        tags.append({"key": "otel.status_code", "type": "string", "value": "ERROR"})
        tags.append({"key": "otel.status_description", "type": "string", "value": span.status.message})
    trace_id, parent = span.trace_id.hex(), span.parent_span_id.hex()
    return {
        "traceID": trace_id,
        "spanID": span.span_id.hex(),
        "operationName": span.name,
        "references": [{"refType": "CHILD_OF", "traceID": trace_id, "spanID": parent}] if parent else [],
        "startTime": span.start_time_unix_nano // 1000,
        "duration": (span.end_time_unix_nano - span.start_time_unix_nano) // 1000,
        "tags": tags,
        "logs": [
            {
                "timestamp": event.time_unix_nano // 1000,
                "fields": [{"key": "event", "type": "string", "value": event.name}],
            }
            for event in span.events
        ],
    }


class Sink(otlp_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.traces: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def Export(self, request: Any, context: Any) -> Any:
        for resource_spans in request.resource_spans:
            names = [item for item in resource_spans.resource.attributes if item.key == "service.name"]
            service = names[0].value.string_value if names else "unknown"
            for scope in resource_spans.scope_spans:
                for span in scope.spans:
                    self._add(service, jaeger_span(span))
        return otlp.ExportTraceServiceResponse()

    def _add(self, service: str, span: dict[str, Any]) -> None:
        trace_id = span["traceID"]
        trace = self.traces.setdefault(trace_id, {"traceID": trace_id, "spans": [], "processes": {}})
        trace["processes"][service] = {"serviceName": service, "tags": []}
        trace["spans"].append(span | {"processID": service})
        while len(self.traces) > _MAX_TRACES:
            self.traces.popitem(last=False)

    async def one(self, request: web.Request) -> web.Response:
        trace = self.traces.get(request.match_info["id"].lower())
        if trace is None:
            return web.json_response(
                {"data": None, "errors": [{"code": 404, "msg": "trace not found"}]}, status=404
            )
        return web.json_response({"data": [trace], "total": 0, "limit": 0, "offset": 0, "errors": None})

    async def search(self, request: web.Request) -> web.Response:
        tags = json.loads(request.query.get("tags", "{}"))
        start, end = (
            int(request.query.get(key, default)) for key, default in (("start", 0), ("end", 1 << 62))
        )

        def fits(span: dict[str, Any]) -> bool:
            has = {item["key"]: str(item["value"]) for item in span["tags"]}
            return (
                span["processID"] == request.query["service"]
                and start <= span["startTime"] <= end
                and all(has.get(key) == value for key, value in tags.items())
            )

        found = [trace for trace in reversed(self.traces.values()) if any(map(fits, trace["spans"]))]
        limit = int(request.query.get("limit", 20))
        return web.json_response({"data": found[:limit], "errors": None})

    async def home(self, _: web.Request) -> web.Response:
        return web.json_response({"traces": len(self.traces)})


async def main() -> None:
    sink = Sink()
    server = grpc.aio.server()
    otlp_grpc.add_TraceServiceServicer_to_server(sink, server)
    server.add_insecure_port("0.0.0.0:4317")
    await server.start()
    app = web.Application()
    app.add_routes(
        [
            web.get("/", sink.home),
            web.get("/api/traces", sink.search),
            web.get("/api/traces/{id}", sink.one),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 16686).start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
