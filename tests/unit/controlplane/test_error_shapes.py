"""Errors, before an answer and in the middle of one, in the shape of the API that was called."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ppd.core.names import Role
from tests.support.api_keys import made
from tests.unit.controlplane.conftest import P_D, QUICK, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ANTHROPIC = pytest.mark.parametrize("path", [MESSAGES, COUNT])
HI = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
TOO_LONG = b'{"type":"error","error":{"type":"BadRequestError","message":"maximum context length is 9"}}'


async def refused(
    stack: Stack, path: str, data: Any, method: str = "POST", **headers: str
) -> tuple[int, Any]:
    """Status and error object; the rest of the answer must be Anthropic's."""
    sent = data if isinstance(data, bytes) else json.dumps(data)
    async with stack.http.request(method, stack.url + path, data=sent, headers=headers) as response:
        answer = await response.json()
    assert answer.keys() == {"type", "error"}
    assert answer["type"] == "error"
    assert answer["error"].keys() == {"type", "message"}
    assert answer["error"]["message"]
    return response.status, answer["error"]["type"]


@ANTHROPIC
async def test_what_is_wrong_with_a_request(stack: Stack, path: str) -> None:
    assert await refused(stack, path, b"{") == (400, "invalid_request_error")
    assert await refused(stack, path, {**HI, "model": ""}) == (400, "invalid_request_error")
    assert await refused(stack, path, {**HI, "model": "nope"}) == (404, "not_found_error")
    assert await refused(stack, path, HI, **{"content-encoding": "gzip"}) == (415, "invalid_request_error")
    assert await refused(stack, path, HI, "GET") == (405, "invalid_request_error")
    assert await refused(stack, path + "/nope", HI) == (404, "not_found_error")


@ANTHROPIC
async def test_what_is_wrong_with_its_caller(tmp_path: Path, path: str) -> None:
    alice = made(tmp_path / "k", "alice", requests_per_min=1)["authorization"][7:]
    async with running(P_D, keys=tmp_path / "k") as stack:
        assert await refused(stack, path, HI) == (401, "authentication_error")
        assert await refused(stack, path, HI, **{"x-api-key": "sk-no"}) == (401, "authentication_error")
        async with stack.http.post(stack.url + path, json=HI, headers={"x-api-key": alice}) as response:
            assert response.status == 200
        assert await refused(stack, path, HI, **{"x-api-key": alice}) == (429, "rate_limit_error")


@ANTHROPIC
async def test_what_is_wrong_with_the_engines(path: str) -> None:
    async with running({}) as stack:
        assert await refused(stack, path, HI) == (503, "overloaded_error")
    async with running({"d0": Role.DECODE}, max_body_bytes=200, **QUICK) as stack:
        assert await refused(stack, path, {**HI, "x": "x" * 300}) == (413, "request_too_large")
        engine = stack.engines["d0"]
        engine.faults.append(Fault("status", status=400, body=TOO_LONG))
        assert await refused(stack, path, HI) == (400, "invalid_request_error")
        engine.faults.append(Fault("status", status=500))
        assert await refused(stack, path, HI) == (502, "api_error")


@ANTHROPIC
async def test_overload_and_a_turn_that_takes_too_long(path: str) -> None:
    async with running({"d0": Role.DECODE}, max_running=1, queue_s=0.05, turn_s=0.5) as stack:
        stack.engines["d0"].faults.append(Fault("stall"))
        late = asyncio.create_task(refused(stack, path, HI))
        while not stack.engines["d0"].requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await refused(stack, path, HI) == (429, "rate_limit_error")
        assert await late == (504, "timeout_error")


@pytest.mark.parametrize("kind", ["close", "truncate", "stall"])
async def test_a_broken_stream_ends_with_an_error_event(kind: str) -> None:
    async with running({"d0": Role.DECODE}, **QUICK) as stack:
        stack.engines["d0"].faults.append(Fault(kind, after=4))
        async with stack.http.post(stack.url + MESSAGES, json={**HI, "stream": True}) as response:
            assert response.status == 200
            events = (await response.text()).strip().split("\n\n")
        assert "event: message_stop" not in [event.partition("\n")[0] for event in events]
        name, _, data = events[-1].partition("\ndata: ")
        assert name == "event: error"
        assert json.loads(data)["error"]["type"] == "api_error"


async def test_a_broken_response_says_so_in_both_ways() -> None:
    """As documented, and so that OpenAI's SDK raises."""
    async with running({"d0": Role.DECODE}, **QUICK) as stack:
        stack.engines["d0"].faults.append(Fault("close", after=4))
        sent = {"model": "m", "input": "hi", "stream": True}
        async with stack.http.post(stack.url + "/v1/responses", json=sent) as response:
            name, _, data = (await response.text()).strip().split("\n\n")[-1].partition("\ndata: ")
        assert name == "event: error"
        found = json.loads(data)
        assert found["type"] == "error"
        assert found["message"] == found["error"]["message"]


async def test_other_endpoints_keep_openais_shape(stack: Stack) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/tokenize", "/v1/messagesx", "/nope"):
        async with stack.http.post(stack.url + path, data=b"{") as response:
            assert (await response.json()).keys() == {"error"}
