"""Messages and Responses are turns like chats: hand-off, affinity, retries, usage, records."""

import asyncio
import json
from typing import Any

import pytest

from ppd.core.names import Role
from tests.support.answers import TEXT
from tests.unit.controlplane.conftest import P_2D, P_D, QUICK, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
FIELD = {MESSAGES: "messages", RESPONSES: "input"}
LIMIT = {MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}
BOTH = pytest.mark.parametrize("path", [MESSAGES, RESPONSES])


def body(path: str, *messages: str, **fields: Any) -> dict[str, Any]:
    """Strings are user and assistant messages in turn."""
    listed = [{"role": "assistant" if i % 2 else "user", "content": each} for i, each in enumerate(messages)]
    return {"model": "m", FIELD[path]: listed, LIMIT[path]: 20, **fields}


async def ask(stack: Stack, path: str, *messages: str, **fields: Any) -> tuple[str, str, str]:
    """Route, decode worker and body of an answer."""
    headers = fields.pop("headers", None)
    sent = body(path, *messages, **fields)
    async with stack.http.post(stack.url + path, json=sent, headers=headers) as response:
        text = await response.text()
        assert response.status == 200, text
        return response.headers["x-ppd-route"], response.headers["x-ppd-decode"], text


def text_of(path: str, answer: str) -> str:
    """Of an answer, or of all the deltas of a stream."""
    if not answer.startswith("event: "):
        parsed = json.loads(answer)
        blocks = parsed["content"] if path == MESSAGES else parsed["output"][0]["content"]
        return "".join(block["text"] for block in blocks)
    found = []
    for event in answer.split("\n\n"):
        name, _, data = event.partition("\ndata: ")
        if name == "event: content_block_delta":
            found.append(json.loads(data)["delta"]["text"])
        elif name == "event: response.output_text.delta":
            found.append(json.loads(data)["delta"])
    return "".join(found)


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_first_turn_is_handed_from_p_to_d(stack: Stack, path: str, stream: bool) -> None:
    stack.engines["p0"].cached = 7
    route, _, answer = await ask(stack, path, "hi", stream=stream)
    assert route == "p-d"
    assert text_of(path, answer) == TEXT
    assert "kv_transfer_params" not in answer
    [p], [d] = stack.engines["p0"].requests, stack.engines["d0"].requests
    assert p.path == d.path == path
    assert p.body[LIMIT[path]] == 1
    assert d.body[LIMIT[path]] == 20
    assert not p.body.get("stream")
    assert p.body["kv_transfer_params"]["do_remote_decode"]
    assert d.body["kv_transfer_params"]["remote_engine_id"] == "p0"
    record = stack.frontend.ledger.recent[-1]
    assert (record.path, record.reason, record.n_out_tokens) == ("p-d", "first-turn", 5)
    assert record.cached_tokens_prefill == 7
    cached = '"cache_read_input_tokens":7' if path == MESSAGES else '"cached_tokens":7'
    assert cached in answer.replace(" ", "")


async def test_only_d_stores_a_response(stack: Stack) -> None:
    await ask(stack, RESPONSES, "hi", store=True)
    assert stack.engines["p0"].requests[0].body["store"] is False
    assert stack.engines["d0"].requests[0].body["store"] is True


@BOTH
async def test_a_later_turn_stays_on_its_d(path: str) -> None:
    async with running(P_2D, **QUICK) as stack:
        homes: dict[str, set[tuple[str, str]]] = {}
        for question in ("one", "two", "three", "four"):
            _, home, _ = await ask(stack, path, question)
            for stream in (False, True):
                found = await ask(stack, path, question, TEXT, "more", stream=stream)
                homes.setdefault(question, set()).add(found[:2])
            assert homes[question] == {("d-local", home)}
        assert len({home for found in homes.values() for _, home in found}) == 2
        record = stack.frontend.ledger.recent[-1]
        assert (record.turn, record.n_ctx_tokens > 0) == (2, True)


@BOTH
async def test_a_conversation_may_go_on_in_another_api(path: str) -> None:
    """The prompt that engines make of it is the same, and so is what they have cached."""
    async with running(P_2D, **QUICK) as stack:
        for n in range(4):
            _, home, _ = await ask(stack, path, f"question {n}")
            async with await stack.chat(f"question {n}", TEXT, "and?") as response:
                assert response.headers["x-ppd-route"] == "d-local"
                assert response.headers["x-ppd-decode"] == home
            found = await ask(stack, path, f"question {n}", TEXT, "and?", TEXT, "so?")
            assert found[:2] == ("d-local", home)


async def test_so_may_one_with_tools_and_a_system_prompt(stack: Stack) -> None:
    system = "You are brief."
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        {"role": "system", "content": system},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ok", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    async with await stack.chat(*chat) as response:
        assert response.status == 200
    answer = {"role": "assistant", "content": TEXT}
    more = {"role": "user", "content": "more"}
    used = [{"type": "text", "text": "ok"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {}}]
    result = [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]}]
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": used},
        {"role": "user", "content": result},
        answer,
        more,
    ]
    sent = {"model": "m", "max_tokens": 9, "system": system, "messages": messages}
    async with stack.http.post(stack.url + MESSAGES, json=sent) as response:
        assert response.headers["x-ppd-route"] == "d-local"
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        answer,
        more,
    ]
    sent = {"model": "m", "instructions": system, "input": items}
    async with stack.http.post(stack.url + RESPONSES, json=sent) as response:
        assert response.headers["x-ppd-route"] == "d-local"


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_one_token_that_ends_the_answer_is_the_answer(stack: Stack, path: str, stream: bool) -> None:
    stack.engines["p0"].faults.append(Fault("stop"))
    route, reason, answer = await _with_reason(stack, path, stream)
    assert (route, reason) == ("p-d", "prefill-answered")
    assert text_of(path, answer) == "Par"
    assert not stack.engines["d0"].requests
    if stream:
        last = "message_stop" if path == MESSAGES else "response.completed"
        assert answer.strip().rpartition("\n\n")[2].startswith(f"event: {last}\n")


async def _with_reason(stack: Stack, path: str, stream: bool) -> tuple[str, str, str]:
    async with stack.http.post(stack.url + path, json=body(path, "hi", stream=stream)) as response:
        headers = response.headers
        return headers["x-ppd-route"], headers["x-ppd-reason"], await response.text()


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["status", "close", "empty"])
async def test_another_d_takes_over_before_the_first_token(path: str, stream: bool, kind: str) -> None:
    async with running(P_2D, **QUICK) as stack:
        for name, other in (("d0", "d1"), ("d1", "d0")):
            stack.engines[name].faults.append(Fault(kind))
            stack.engines[name].on_request = stack.engines[other].faults.clear
        _, _, answer = await ask(stack, path, "hi", stream=stream)
        assert text_of(path, answer) == TEXT
        assert stack.frontend.ledger.recent[-1].retries == 1


async def test_a_response_that_has_only_been_announced_has_not_begun() -> None:
    """Engines send `response.created` before they make a token."""
    async with running(P_2D, **QUICK) as stack:
        for name, other in (("d0", "d1"), ("d1", "d0")):
            stack.engines[name].faults.append(Fault("close", after=2))
            stack.engines[name].on_request = stack.engines[other].faults.clear
        _, _, answer = await ask(stack, RESPONSES, "hi", stream=True)
        assert text_of(RESPONSES, answer) == TEXT
        assert answer.count("event: response.created") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"truncation": "auto"},
        {"background": True},
        {"tools": [{"type": "web_search"}]},
        {"previous_input_messages": [{"role": "user"}]},
    ],
)
async def test_some_responses_cannot_be_handed_off(stack: Stack, fields: dict[str, Any]) -> None:
    _, reason, _ = await _with_reason_of(stack, RESPONSES, fields)
    assert reason == "one-engine"
    assert not stack.engines["p0"].requests


async def _with_reason_of(stack: Stack, path: str, fields: dict[str, Any]) -> tuple[str, str, str]:
    async with stack.http.post(stack.url + path, json=body(path, "hi", **fields)) as response:
        assert response.status == 200
        return response.headers["x-ppd-route"], response.headers["x-ppd-reason"], await response.text()


async def test_a_response_is_continued_where_it_is_kept() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(4)}) as stack:
        for engine in stack.engines.values():
            engine.answer_id = f"resp_{engine.name}"
        for stream in (False, True):
            _, where, _ = await ask(stack, RESPONSES, "hi", stream=stream)
            for _ in range(4):
                more = {"previous_response_id": f"resp_{where}"}
                assert (await ask(stack, RESPONSES, "more", **more))[1] == where


async def test_a_response_that_nobody_keeps_is_404(stack: Stack) -> None:
    sent = {"model": "m", "input": "x", "previous_response_id": "resp_gone"}
    async with stack.http.post(stack.url + RESPONSES, json=sent) as response:
        assert response.status == 404
        error = (await response.json())["error"]
        assert (error["type"], error["param"]) == ("not_found_error", "previous_response_id")
    assert not stack.engines["d0"].requests


async def test_an_explicit_id_draws_requests_to_one_engine() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(4)}) as stack:
        headers = {"x-session-id": "s"}
        found = {(await ask(stack, RESPONSES, f"q{i}", headers=headers))[1] for i in range(4)}
        assert len(found) == 1


@pytest.mark.parametrize(("status", "told"), [(404, 404), (501, 400)])
@pytest.mark.parametrize("path", [MESSAGES, RESPONSES, "/tokenize"])
async def test_what_no_engine_has_is_the_clients_fault(path: str, status: int, told: int) -> None:
    """No engine rests for it, and none is asked after the first."""
    async with running({"d0": Role.DECODE, "d1": Role.DECODE}, **QUICK) as stack:
        for engine in stack.engines.values():
            engine.faults.append(Fault("status", status=status))
        async with stack.http.post(stack.url + path, json={"model": "m", "input": "x"}) as response:
            assert response.status == told
            assert (await response.json())["error"]["message"] == "scripted"
        assert sum(len(engine.requests) for engine in stack.engines.values()) == 1
        now_s = asyncio.get_running_loop().time()
        assert not any(worker.resting(now_s) for worker in stack.frontend.cluster.workers.values())


@BOTH
async def test_an_engine_that_breaks_a_stream_rests_and_the_turn_is_an_error(path: str) -> None:
    async with running({"d0": Role.DECODE, "d1": Role.DECODE}, **QUICK) as stack:
        for engine in stack.engines.values():
            engine.faults.append(Fault("close", after=4))
        sent = body(path, "hi", stream=True)
        async with stack.http.post(stack.url + path, json=sent) as response:
            await response.read()
            broken = response.headers["x-ppd-decode"]
        now_s = asyncio.get_running_loop().time()
        resting = {each.name for each in stack.frontend.cluster.workers.values() if each.resting(now_s)}
        assert resting == {broken}
        assert stack.frontend.ledger.recent[-1].outcome == "error"


@BOTH
async def test_an_abandoned_one_is_counted_and_its_engine_stops(stack: Stack, path: str) -> None:
    stack.engines["d0"].chunk_gap_s = 0.02
    stack.engines["d0"].words = ["a"] * 500
    response = await stack.http.post(stack.url + path, json=body(path, "hi", stream=True))
    await response.content.readany()
    response.close()
    while not stack.frontend.ledger.recent:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert stack.frontend.ledger.recent[-1].outcome == "cancelled"
    while not stack.engines["d0"].requests[0].aborted:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
async def test_what_makes_no_tokens_goes_to_one_engine_and_leaves_no_conversation(path: str) -> None:
    async with running(P_D) as stack:
        sent = {"model": "m", "prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}}
        async with stack.http.post(stack.url + path, json=sent) as response:
            assert response.status == 200
            assert response.headers["x-ppd-reason"] == "one-engine"
        [seen] = stack.engines["d0"].requests
        assert seen.path == path
        assert "kv_transfer_params" not in seen.body
        assert not stack.engines["p0"].requests
        assert len(stack.frontend.sessions) == 0
        assert stack.frontend.features.arrivals.rate(asyncio.get_running_loop().time()) == 0
        record = stack.frontend.ledger.recent[-1]
        assert (record.reason, record.decode_worker, record.outcome) == ("one-engine", "d0", "ok")
        assert (record.n_prompt_tokens > 0) == (path != "/detokenize")


async def test_the_queue_holds_for_all() -> None:
    async with running({"d0": Role.DECODE}, max_running=1, queue_s=0.05) as stack:
        stack.engines["d0"].faults.append(Fault("stall"))
        waiting = asyncio.create_task(stack.http.post(stack.url + RESPONSES, json=body(RESPONSES, "x")))
        while not stack.engines["d0"].requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for path in (MESSAGES, RESPONSES):
            async with stack.http.post(stack.url + path, json=body(path, "x")) as response:
                assert response.status == 429
                assert response.headers["retry-after"]
        waiting.cancel()
