"""The spans of a turn, and what the engines are told of the trace."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ppd.core.names import Outcome, Reason
from ppd.core.records import KvMoved
from tests.unit.controlplane.conftest import P_D, Stack, running, trace
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
async def traced() -> AsyncIterator[tuple[Stack, InMemorySpanExporter]]:
    async with running(P_D) as stack:
        yield stack, trace(stack)


async def test_a_turn_is_one_trace(traced: tuple[Stack, InMemorySpanExporter]) -> None:
    stack, exporter = traced
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    async with await stack.chat("hi", headers=headers) as response:
        assert response.headers["x-trace-id"] == TRACE
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert spans.keys() == {"POST /v1/chat/completions", "ppd.route", "ppd.prefill", "ppd.decode"}
    server = spans["POST /v1/chat/completions"]
    assert f"{server.context.trace_id:032x}" == TRACE
    for name in ("ppd.route", "ppd.prefill", "ppd.decode"):
        assert spans[name].parent is not None
        assert spans[name].parent.span_id == server.context.span_id
    route = dict(spans["ppd.route"].attributes or {})
    assert route["ppd.path"] == "p-d"
    assert route["ppd.reason"] == "first-turn"
    for name in ("turn", "n_ctx", "n_in", "n_out_predicted", "cell", "table_version", "score"):
        assert f"ppd.{name}" in route
    prefill = f"{spans['ppd.prefill'].context.span_id:016x}"
    decode = f"{spans['ppd.decode'].context.span_id:016x}"
    assert prefill in stack.engines["p0"].requests[0].headers["traceparent"]
    asked = stack.engines["d0"].requests[0]
    assert decode in asked.headers["traceparent"]
    assert decode in asked.body["kv_transfer_params"]["traceparent"]
    assert stack.frontend.ledger.recent[-1].trace_id == TRACE


@pytest.mark.parametrize(("moved_bytes", "events"), [(0, ["d-p"]), (1000, [])])
async def test_a_hand_off_that_moved_nothing_is_an_event_of_the_route(
    traced: tuple[Stack, InMemorySpanExporter], moved_bytes: int, events: list[str]
) -> None:
    stack, exporter = traced
    d0 = stack.engines["d0"]

    def report() -> None:
        turn = d0.requests[-1].body["kv_transfer_params"]["ppd_request_id"]
        for direction, size_bytes in (("d-p", moved_bytes), ("p-d", 2000)):
            moved = KvMoved(request_id=turn, worker_id="w", direction=direction, bytes=size_bytes)
            stack.frontend.transfers.on_moved(moved)

    d0.on_request = report
    await stack.ask("hi")
    [route] = [span for span in exporter.get_finished_spans() if span.name == "ppd.route"]
    [prefill] = [span for span in exporter.get_finished_spans() if span.name == "ppd.prefill"]
    assert {event.name for event in route.events} <= {"kv.nothing_to_transfer"}
    assert [(event.attributes or {})["kv.direction"] for event in route.events] == events
    assert route.end_time <= prefill.start_time


async def test_a_turns_span_has_what_jaegers_tail_rules_ask_for(
    traced: tuple[Stack, InMemorySpanExporter],
) -> None:
    stack, exporter = traced
    await stack.ask("hi")
    [span] = [each for each in exporter.get_finished_spans() if each.name.startswith("POST ")]
    attributes = dict(span.attributes or {})
    config = yaml.safe_load((ROOT / "deploy/compose/jaeger/config.yaml").read_text())
    rules = [
        policy[policy["type"]]
        for policy in config["processors"]["tail_sampling"]["policies"]
        if policy["type"].endswith("_attribute")
    ]
    assert {rule["key"] for rule in rules} <= attributes.keys()
    known = {"ppd.reason": Reason, "ppd.outcome": Outcome}
    for rule in rules:
        for value in rule.get("values", []):
            assert known[rule["key"]](value)


async def test_a_failed_leg_is_marked(traced: tuple[Stack, InMemorySpanExporter]) -> None:
    stack, exporter = traced
    for name in ("d0", "p0", "p0"):
        stack.engines[name].faults.append(Fault("status"))
    async with await stack.chat("hi") as response:
        assert response.status == 502
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert not spans["ppd.decode"].status.is_ok
    assert not spans["POST /v1/chat/completions"].status.is_ok


async def test_without_tracing_the_clients_context_goes_on(stack: Stack) -> None:
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    async with await stack.chat("hi", headers={"traceparent": parent}) as response:
        assert response.headers["x-trace-id"] == TRACE
    assert stack.engines["d0"].requests[0].headers["traceparent"] == parent
    await stack.ask("hi", headers={"traceparent": "nonsense"})
    assert "traceparent" not in stack.engines["d0"].requests[1].headers


STATE = "vendor=a,other=b"
ENDPOINTS = pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/tokenize", "/detokenize", "/v1/messages/count_tokens"),
    ],
)


async def post(stack: Stack, path: str, **headers: str) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": 2}
    async with stack.http.post(stack.url + path, json={"model": "m", **asked}, headers=headers) as response:
        assert response.status == 200
        await response.read()


@ENDPOINTS
async def test_every_endpoint_is_a_part_of_the_clients_trace(
    traced: tuple[Stack, InMemorySpanExporter], path: str
) -> None:
    stack, exporter = traced
    await post(stack, path, traceparent=f"00-{TRACE}-b7ad6b7169203331-01", tracestate=STATE)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    server = spans[f"POST {path}"]
    assert f"{server.context.trace_id:032x}" == TRACE
    for engine in stack.engines.values():
        for seen in engine.requests:
            leg = spans["ppd.prefill" if engine.name == "p0" else "ppd.decode"]
            assert seen.headers["traceparent"] == f"00-{TRACE}-{leg.context.span_id:016x}-01"
            assert seen.headers["tracestate"] == STATE
    assert stack.frontend.ledger.recent[-1].trace_id == TRACE
    assert stack.frontend.ledger.recent[-1].endpoint == path


@ENDPOINTS
async def test_without_tracing_its_state_goes_on_too(stack: Stack, path: str) -> None:
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    await post(stack, path, traceparent=parent, tracestate=STATE)
    for name, state in (("x", STATE), (parent, "a=" + "x" * 600)):
        await post(stack, path, traceparent=name, tracestate=state)
    first, second, third = stack.engines["d0"].requests
    assert (first.headers["traceparent"], first.headers["tracestate"]) == (parent, STATE)
    assert "tracestate" not in second.headers
    assert "tracestate" not in third.headers


@ENDPOINTS
async def test_the_clients_request_id_is_in_span_record_and_engine(
    traced: tuple[Stack, InMemorySpanExporter], path: str
) -> None:
    stack, exporter = traced
    await post(stack, path, **{"x-request-id": "mine-1"})
    [server] = [span for span in exporter.get_finished_spans() if span.parent is None]
    record = stack.frontend.ledger.recent[-1]
    assert (server.attributes or {})["ppd.client_request_id"] == record.client_request_id == "mine-1"
    assert (server.attributes or {})["ppd.request_id"] == record.request_id
    for engine in stack.engines.values():
        for seen in engine.requests:
            assert seen.headers["x-request-id"].startswith(f"mine-1-{record.request_id}")


@pytest.mark.parametrize("given", ["a b", "x" * 129, "ü", 'a"b'])
async def test_an_id_that_is_not_clean_goes_nowhere(
    traced: tuple[Stack, InMemorySpanExporter], given: str
) -> None:
    stack, exporter = traced
    await post(stack, "/tokenize", **{"x-request-id": given})
    record = stack.frontend.ledger.recent[-1]
    assert record.client_request_id == ""
    assert stack.engines["d0"].requests[0].headers["x-request-id"] == record.request_id
    [server] = [span for span in exporter.get_finished_spans() if span.parent is None]
    assert (server.attributes or {})["ppd.client_request_id"] == ""


async def test_refusals_have_the_clients_id_too(traced: tuple[Stack, InMemorySpanExporter]) -> None:
    stack, exporter = traced
    async with await stack.chat("hi", model="nope", headers={"x-request-id": "mine-2"}) as response:
        assert response.status == 404
    [server] = exporter.get_finished_spans()
    assert (server.attributes or {})["ppd.client_request_id"] == "mine-2"
