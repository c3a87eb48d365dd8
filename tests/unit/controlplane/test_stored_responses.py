"""Responses that an engine keeps: each operation reaches that engine, and nobody else's do."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from controlplane.turn import stored
from ppd.core.names import Role
from tests.support.api_keys import made
from tests.unit.controlplane.conftest import QUICK, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

FOUR = {f"d{i}": Role.DECODE for i in range(4)}
OPERATIONS = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
EACH = pytest.mark.parametrize(("method", "suffix"), OPERATIONS)


async def respond(stack: Stack, **fields: Any) -> str:
    """Where a new response is kept; its id is `resp_` and that name."""
    for engine in stack.engines.values():
        engine.answer_id = f"resp_{engine.name}"
    headers = fields.pop("headers", None)
    sent = {"model": "m", "input": "hi", **fields}
    async with stack.http.post(f"{stack.url}/v1/responses", json=sent, headers=headers) as response:
        assert response.status == 200
        await response.read()
        return response.headers["x-ppd-decode"]


async def on_it(stack: Stack, method: str, path: str, **headers: str) -> tuple[int, Any]:
    async with stack.http.request(method, f"{stack.url}/v1/responses/{path}", headers=headers) as response:
        return response.status, await response.json()


@EACH
@pytest.mark.parametrize("stream", [False, True])
async def test_it_reaches_the_engine_that_keeps_it(method: str, suffix: str, stream: bool) -> None:
    async with running(FOUR) as stack:
        where = {await respond(stack, stream=stream, input=f"question {i}") for i in range(4)}
        assert len(where) > 1
        for name in where:
            path = f"resp_{name}{suffix}"
            before = {each: len(engine.requests) for each, engine in stack.engines.items()}
            status, answer = await on_it(
                stack, method, path + "?limit=3&x=evil%0d%0a", **{"x-request-id": "r"}
            )
            assert (status, answer["method"]) == (200, method)
            assert "kv_transfer_params" not in answer
            seen = stack.engines[name].requests[-1]
            assert (seen.method, seen.path) == (method, f"/v1/responses/{path}?limit=3")
            assert seen.headers["x-request-id"].startswith("r-")
            assert seen.body == {}
            assert method == "POST" or seen.raw == b""
            after = {each: len(engine.requests) for each, engine in stack.engines.items()}
            assert after == {**before, name: before[name] + 1}
            record = stack.frontend.ledger.recent[-1]
            assert (record.reason, record.decode_worker) == ("one-engine", name)


async def test_it_can_be_streamed() -> None:
    async with running(FOUR) as stack:
        where = await respond(stack, background=True)
        path = f"{stack.url}/v1/responses/resp_{where}?stream=true&starting_after=1"
        async with stack.http.get(path) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            text = await response.text()
        assert text.strip().rpartition("\n\n")[2].startswith("event: response.completed")
        assert "kv_transfer_params" not in text


async def test_a_stream_of_it_that_breaks_ends_in_an_error_and_goes_nowhere_else() -> None:
    async with running(FOUR) as stack:
        name = await respond(stack, stream=True)
        others = {each: len(engine.requests) for each, engine in stack.engines.items() if each != name}
        stack.engines[name].faults.append(Fault("close", after=5))
        async with stack.http.get(f"{stack.url}/v1/responses/resp_{name}?stream=true") as response:
            text = await response.text()
        assert response.status == 200
        assert "response.completed" not in text
        assert text.rstrip().rpartition("\n\n")[2].startswith("event: error\n")
        assert others == {each: len(stack.engines[each].requests) for each in others}


@EACH
async def test_what_nobody_keeps_is_404_without_asking_anybody(method: str, suffix: str) -> None:
    async with running(FOUR) as stack:
        status, answer = await on_it(stack, method, "resp_gone" + suffix)
        assert status == 404
        assert answer["error"]["type"] == "not_found_error"
        assert "resp_gone" in answer["error"]["message"]
        where = await respond(stack, store=False)
        assert (await on_it(stack, method, f"resp_{where}{suffix}"))[0] == 404
        assert sum(len(engine.requests) for engine in stack.engines.values()) == 1


@EACH
async def test_nor_does_it_exist_for_another_key(tmp_path: Path, method: str, suffix: str) -> None:
    alice, bob = made(tmp_path / "k", "alice"), made(tmp_path / "k", "bob")
    async with running({"d0": Role.DECODE}, keys=tmp_path / "k") as stack:
        where = await respond(stack, headers=alice)
        path = f"resp_{where}{suffix}"
        assert (await on_it(stack, method, path, **bob))[0] == 404
        assert (await on_it(stack, method, path))[0] == 401
        assert len(stack.engines["d0"].requests) == 1
        more = {"model": "m", "input": "more", "previous_response_id": f"resp_{where}"}
        for headers, expected in ((bob, 404), (alice, 200)):
            async with stack.http.post(f"{stack.url}/v1/responses", json=more, headers=headers) as response:
                assert response.status == expected
        assert (await on_it(stack, method, path, **alice))[0] == 200


@EACH
async def test_what_the_engine_cannot_do_is_404_and_it_does_not_rest(method: str, suffix: str) -> None:
    async with running(FOUR, **QUICK) as stack:
        where = await respond(stack)
        for status in (404, 405):
            stack.engines[where].faults.append(Fault("status", status=status, body=b'{"detail":"Not Found"}'))
            found, answer = await on_it(stack, method, f"resp_{where}{suffix}")
            assert (found, answer["error"]["message"]) == (404, "Not Found")
        now_s = asyncio.get_running_loop().time()
        assert not any(worker.resting(now_s) for worker in stack.frontend.cluster.workers.values())


async def test_an_engine_that_is_gone_keeps_nothing() -> None:
    async with running(FOUR) as stack:
        where = await respond(stack)
        left = {
            worker_id: worker.record
            for worker_id, worker in stack.frontend.cluster.workers.items()
            if worker.name != where
        }
        stack.frontend.fleet.update(left)
        assert (await on_it(stack, "GET", f"resp_{where}"))[0] == 404


async def test_no_more_than_so_many_are_known_and_none_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running({"d0": Role.DECODE}, session_ttl_s=0.2) as stack:
        assert await respond(stack) == "d0"
        assert (await on_it(stack, "GET", "resp_d0"))[0] == 200
        await asyncio.sleep(0.3)
        assert (await on_it(stack, "GET", "resp_d0"))[0] == 404
    monkeypatch.setattr(stored, "_MAX_RESPONSES", 2)
    async with running({"d0": Role.DECODE}) as stack:
        for n in range(3):
            stack.engines["d0"].answer_id = f"resp_{n}"
            async with stack.http.post(
                f"{stack.url}/v1/responses", json={"model": "m", "input": "hi"}
            ) as response:
                await response.read()
        assert [(await on_it(stack, "GET", f"resp_{n}"))[0] for n in range(3)] == [404, 200, 200]


@pytest.mark.parametrize(("method", "suffix"), [("PUT", ""), ("PATCH", ""), ("GET", "/cancel"), ("POST", "")])
async def test_other_methods_are_405(stack: Stack, method: str, suffix: str) -> None:
    status, answer = await on_it(stack, method, "resp_x" + suffix)
    assert (status, answer.keys()) == (405, {"error"})


async def test_the_document_has_them(stack: Stack) -> None:
    async with stack.http.get(stack.url + "/openapi.json") as response:
        paths = (await response.json())["paths"]
    for method, suffix in OPERATIONS:
        assert method.lower() in paths["/v1/responses/{response_id}" + suffix]
