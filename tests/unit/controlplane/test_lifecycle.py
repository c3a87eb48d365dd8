"""What every request has in common: spans, counts and records, whatever became of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from controlplane.telemetry import metrics
from ppd.core.names import Role
from tests.support.api_keys import made
from tests.unit.controlplane.conftest import P_D, Stack, running, trace
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize")


def count(path: str, reason: str, status: int) -> float:
    metrics.exposition()
    return metrics.REQUESTS.labels(path, reason, str(status))._value.get()


async def status_and_trace(stack: Stack, method: str, path: str, body: Any) -> tuple[int, str]:
    async with stack.http.request(method, stack.url + path, json=body) as response:
        await response.read()
        return response.status, response.headers["x-trace-id"]


def only(spans: tuple[ReadableSpan, ...]) -> ReadableSpan:
    [span] = [each for each in spans if each.parent is None]
    return span


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "status", "error_type"),
    [([], 400, "invalid_request_error"), ({"model": "nope"}, 404, "not_found_error")],
)
async def test_a_refused_request_has_a_span(
    stack: Stack, path: str, body: Any, status: int, error_type: str
) -> None:
    exporter = trace(stack)
    if body:
        body |= {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": 1}
    assert (await status_and_trace(stack, "POST", path, body))[0] == status
    span = only(exporter.get_finished_spans())
    assert span.name == f"POST {path}"
    attributes = dict(span.attributes or {})
    assert (attributes["http.response.status_code"], attributes["error.type"]) == (status, error_type)


@pytest.mark.parametrize("path", PATHS)
async def test_so_has_one_without_a_key(tmp_path: Path, path: str) -> None:
    made(tmp_path / "k", "alice")
    async with running(P_D, keys=tmp_path / "k") as stack:
        exporter = trace(stack)
        status, trace_id = await status_and_trace(stack, "POST", path, {"model": "m"})
        assert status == 401
        span = only(exporter.get_finished_spans())
        assert f"{span.context.trace_id:032x}" == trace_id
        assert (span.attributes or {})["error.type"] == "authentication_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/v1/chat/completions", 405), ("GET", "/v1/models", 200)],
)
async def test_so_has_one_that_no_engine_serves(stack: Stack, method: str, path: str, status: int) -> None:
    exporter = trace(stack)
    found, trace_id = await status_and_trace(stack, method, path, None)
    span = only(exporter.get_finished_spans())
    assert (found, f"{span.context.trace_id:032x}") == (status, trace_id)
    attributes = dict(span.attributes or {})
    assert attributes["http.response.status_code"] == status
    assert ("error.type" in attributes) == (status >= 400)


async def test_health_checks_leave_no_spans(stack: Stack) -> None:
    exporter = trace(stack)
    for path in ("/live", "/ready", "/health", "/metrics", "/openapi.json", "/ui", "/admin/state"):
        await status_and_trace(stack, "GET", path, None)
    assert not exporter.get_finished_spans()


async def test_without_engines_the_503_has_a_span() -> None:
    async with running({}) as stack:
        exporter = trace(stack)
        async with await stack.chat("hi") as response:
            assert response.status == 503
        span = only(exporter.get_finished_spans())
        assert (span.attributes or {})["error.type"] == "service_unavailable_error"


async def test_what_was_never_placed_is_no_turn_of_any_path() -> None:
    """Neither in the metrics, nor among the last turns, nor in a record."""
    async with running({"d0": Role.DECODE}, max_running=1, queue_s=0.05) as stack:
        exporter = trace(stack)
        before = count("none", "none", 429)
        stack.engines["d0"].faults.append(Fault("stall"))
        waiting = asyncio.create_task(stack.chat("first"))
        while not stack.engines["d0"].requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with await stack.chat("second") as response:
            assert response.status == 429
            assert "x-ppd-route" not in response.headers
        assert count("none", "none", 429) == before + 1
        assert count("p-d", "first-turn", 429) == 0
        assert not stack.frontend.ledger.recent
        assert not stack.frontend.recorder
        span = only(exporter.get_finished_spans())
        assert (span.attributes or {})["error.type"] == "rate_limit_error"
        waiting.cancel()
