"""Endpoints that run whole on one engine."""

import asyncio

import pytest

from ppd.core.names import Role
from tests.unit.controlplane.conftest import P_2D, Stack, running
from tests.unit.controlplane.fakes import Fault
from tests.unit.controlplane.test_failures import QUICK

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/tokenize"])
async def test_the_body_goes_to_d_and_its_answer_back(stack: Stack, path: str) -> None:
    body = {"model": "m", "prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}}
    async with stack.http.post(stack.url + path, json=body) as response:
        assert response.status == 200
        assert response.headers["x-ppd-reason"] == "one-engine"
        assert "kv_transfer_params" not in await response.json()
    assert stack.engines["d0"].requests[0].path == path
    assert "kv_transfer_params" not in stack.engines["d0"].requests[0].body
    assert not stack.engines["p0"].requests


async def test_streams_pass_through(stack: Stack) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    async with stack.http.post(stack.url + "/v1/messages", json=body) as response:
        assert (await response.text()).count("data: ") == 7


async def test_another_engine_takes_over_and_errors_have_openais_shape() -> None:
    async with running(P_2D, **QUICK) as stack:
        for name, other in (("d0", "d1"), ("d1", "d0")):
            stack.engines[name].faults.append(Fault("status"))
            stack.engines[name].on_request = stack.engines[other].faults.clear
        async with stack.http.post(stack.url + "/tokenize", json={"model": "m", "prompt": "x"}) as response:
            assert response.status == 200
        for body, status in (({"model": "nope"}, 404), ({}, 400)):
            async with stack.http.post(stack.url + "/tokenize", json=body) as response:
                assert response.status == status
                assert (await response.json())["error"]["message"]


async def home(stack: Stack, path: str, body: dict[str, object], **headers: str) -> str:
    async with stack.http.post(stack.url + path, json={"model": "m", **body}, headers=headers) as response:
        assert response.status == 200
        await response.read()
        return response.headers["x-ppd-decode"]


@pytest.mark.parametrize(("path", "field"), [("/v1/messages", "messages"), ("/v1/responses", "input")])
async def test_a_conversation_stays_on_its_engine(path: str, field: str) -> None:
    async with running({f"d{i}": Role.DECODE for i in range(4)}) as stack:
        homes: dict[int, set[str]] = {number: set() for number in range(6)}
        for turn in range(4):
            for number, seen in homes.items():
                messages = [{"role": "user", "content": f"question {number}"}]
                for earlier in range(turn):
                    messages.append({"role": "assistant", "content": "whatever"})
                    messages.append({"role": "user", "content": f"more {earlier}"})
                seen.add(await home(stack, path, {field: messages}))
        assert all(len(seen) == 1 for seen in homes.values())
        assert len(set.union(*homes.values())) > 1


async def test_a_response_is_continued_where_it_is_kept() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(4)}) as stack:
        for engine in stack.engines.values():
            engine.answer_id = f"resp_{engine.name}"
        for stream in (False, True):
            where = await home(stack, "/v1/responses", {"input": "hi", "stream": stream})
            for _ in range(4):
                body = {"input": "more", "previous_response_id": f"resp_{where}"}
                assert await home(stack, "/v1/responses", body) == where


async def test_an_explicit_id_binds_where_the_history_does_not() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(4)}) as stack:
        found = {
            await home(stack, "/v1/responses", {"input": f"q{i}"}, **{"x-session-id": "s"}) for i in range(6)
        }
        assert len(found) == 1


async def test_the_queue_holds_for_these_too() -> None:
    async with running({"d0": Role.DECODE}, max_running=1, queue_s=0.05) as stack:
        stack.engines["d0"].faults.append(Fault("stall"))
        body = {"model": "m", "input": "x"}
        waiting = asyncio.create_task(stack.http.post(stack.url + "/v1/responses", json=body))
        while not stack.engines["d0"].requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with stack.http.post(stack.url + "/v1/responses", json=body) as response:
            assert response.status == 429
            assert response.headers["retry-after"]
        waiting.cancel()


@pytest.mark.parametrize(("status", "told"), [(404, 404), (501, 400)])
async def test_what_no_engine_has_is_the_clients_fault(status: int, told: int) -> None:
    """No engine rests for it, and none is asked after the first."""
    async with running(P_2D, **QUICK) as stack:
        for name in ("d0", "d1"):
            stack.engines[name].faults.append(Fault("status", status=status))
        body = {"model": "m", "input": "x", "previous_response_id": "resp_gone"}
        async with stack.http.post(stack.url + "/v1/responses", json=body) as response:
            assert response.status == told
            assert (await response.json())["error"]["message"] == "scripted"
        assert len(stack.engines["d0"].requests) + len(stack.engines["d1"].requests) == 1
        now_s = asyncio.get_running_loop().time()
        assert not any(worker.resting(now_s) for worker in stack.frontend.cluster.workers.values())
