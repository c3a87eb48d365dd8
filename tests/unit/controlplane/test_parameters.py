"""Every parameter of OpenAI's chat and completions reaches the engines as it was sent, or is refused."""

import json
from typing import Any

import pytest

from ppd.core.names import Role
from tests.unit.controlplane.conftest import P_D, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": {"type": "object"}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"b": 1, "a": 2}}}

# Where a hand-off serves the parameter, P and D both get it; P's answer may not be longer than a token.
ON_BOTH = [
    {"temperature": 0.5},
    {"top_p": 0.25},
    {"presence_penalty": -1.5},
    {"frequency_penalty": 2},
    {"seed": 1234567890123456789},
    {"stop": "x"},
    {"stop": ["a", "b"]},
    {"logit_bias": {"50256": -100, "7": 5}},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 5},
    {"user": "u"},
    {"tools": [TOOL], "tool_choice": "auto"},
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"functions": [], "function_call": "none", "audio": None, "web_search_options": None},
    {"response_format": {"type": "json_object"}},
    {"response_format": SCHEMA},
    {"reasoning_effort": "low"},
    {"metadata": {"k": "v"}, "store": False, "service_tier": "auto", "verbosity": "low"},
    {"modalities": ["text"], "prediction": {"type": "content", "content": "x"}},
    {"safety_identifier": "s"},
    # vLLM's own
    {"top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "skip_special_tokens": False},
    {"stop_token_ids": [1, 2], "include_stop_str_in_output": True, "bad_words": ["x"], "priority": 3},
    {"structured_outputs": {"regex": "a+"}, "chat_template_kwargs": {"enable_thinking": False}},
    {"add_generation_prompt": True, "continue_final_message": False, "documents": [{"text": "x"}]},
    {"truncate_prompt_tokens": 100, "mm_processor_kwargs": {"k": 1}, "vllm_xargs": {"k": "v"}},
    {"return_tokens_as_token_ids": True, "return_token_ids": True},
]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}


async def post(
    stack: Stack, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> tuple[int, Any, Any]:
    async with stack.http.post(stack.url + path, json=body) as response:
        kind = response.headers["content-type"]
        answer = await response.json() if kind.startswith("application/json") else await response.text()
        return response.status, answer, response.headers


@pytest.mark.parametrize("fields", ON_BOTH, ids=lambda fields: "+".join(fields))
@pytest.mark.parametrize("stream", [False, True])
async def test_it_reaches_both_engines_as_it_was_sent(
    stack: Stack, fields: dict[str, Any], stream: bool
) -> None:
    status, _, headers = await post(stack, chat(**fields, stream=stream))
    assert (status, headers["x-ppd-route"]) == (200, "p-d")
    for name in ("p0", "d0"):
        (seen,) = stack.engines[name].requests
        for field, value in fields.items():
            assert seen.body[field] == value
            sent = f'"{field}": {json.dumps(value)}'.encode().partition(b": ")[2]
            assert sent in seen.raw, "bytes and order of a tool's schema are the client's"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_length_limit_is_ds_and_one_for_p(stack: Stack, field: str) -> None:
    assert (await post(stack, chat(**{field: 7})))[0] == 200
    assert stack.engines["d0"].requests[0].body[field] == 7
    assert stack.engines["p0"].requests[0].body[field] == 1
    assert (await post(stack, chat(**{field: 7}, min_tokens=5)))[0] == 200
    assert stack.engines["d0"].requests[1].body["min_tokens"] == 5
    assert stack.engines["p0"].requests[1].body["min_tokens"] == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"n": 3}),
        ("/v1/chat/completions", {"prompt_logprobs": 0}),
        ("/v1/chat/completions", {"echo": True}),
        ("/v1/chat/completions", {"use_beam_search": True}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/completions", {"prompt": [[1, 2], [3]]}),
        ("/v1/completions", {"prompt": "a", "n": 2}),
        ("/v1/completions", {"prompt": "a", "best_of": 2}),
        ("/v1/completions", {"prompt": "a", "echo": True, "logprobs": 1, "max_tokens": 0}),
    ],
)
async def test_what_cannot_be_handed_off_runs_whole_on_one_engine(
    stack: Stack, path: str, fields: dict[str, Any]
) -> None:
    body = chat(**fields) if "chat" in path else {"model": "m", **fields}
    status, _, headers = await post(stack, body, path)
    assert (status, headers["x-ppd-route"], headers["x-ppd-reason"]) == (200, "d-local", "one-engine")
    (seen,) = stack.engines["d0"].requests
    assert all(seen.body[field] == value for field, value in fields.items())
    assert not stack.engines["p0"].requests


@pytest.mark.parametrize("prompt", ["a", [1, 2, 3]])
async def test_one_prompt_is_handed_off(stack: Stack, prompt: Any) -> None:
    body = {"model": "m", "prompt": prompt, "suffix": "s", "logprobs": 2}
    status, _, headers = await post(stack, body, "/v1/completions")
    assert (status, headers["x-ppd-route"]) == (200, "p-d")
    for name in ("p0", "d0"):
        seen = stack.engines[name].requests[0].body
        assert all(seen[field] == value for field, value in body.items())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": "x"}, "n"),
        ({"n": 1.5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"max_completion_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "perhaps"}}, "stream_options.include_usage"),
        ({"messages": [{"role": "user", "content": {"type": "text"}}]}, "messages[0].content"),
        # what engines pass over in silence
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"guided_choice": ["a"]}, "guided_choice"),
    ],
    ids=lambda value: str(value),
)
async def test_what_p_would_not_notice_is_refused_before_it_works(
    stack: Stack, fields: dict[str, Any], param: str
) -> None:
    status, answer, _ = await post(stack, chat(**fields))
    assert status == 400
    assert answer["error"]["param"] == param
    assert answer["error"]["type"] == "invalid_request_error"
    assert not stack.engines["p0"].requests


async def test_what_only_an_engine_can_judge_is_its_4xx(stack: Stack) -> None:
    refusal = b'{"error":{"message":"temperature must be in [0, 2]","type":"BadRequestError","code":400}}'
    stack.engines["p0"].faults.append(Fault("status", status=400, body=refusal))
    status, answer, _ = await post(stack, chat(temperature=9))
    assert status == 400
    assert answer["error"]["message"] == "temperature must be in [0, 2]"
    assert not stack.engines["d0"].requests


@pytest.mark.parametrize("stream", [False, True])
async def test_what_d_finds_fault_with_the_client_hears_in_full(stack: Stack, stream: bool) -> None:
    error = {
        "message": "Grammar error: Invalid type",
        "type": "BadRequestError",
        "param": "body.stop",
        "code": 400,
    }
    refusal = json.dumps({"error": error}).encode()
    kind = "error-event" if stream else "status"
    stack.engines["d0"].faults.append(Fault(kind, status=400, body=refusal))
    status, answer, _ = await post(stack, chat(stream=stream))
    assert status == 400
    assert answer["error"] == {**error, "type": "invalid_request_error", "param": "stop", "code": None}
    assert len(stack.engines["d0"].requests) == 1


@pytest.mark.parametrize(
    "options",
    [
        None,
        {"include_usage": False},
        {"include_usage": True},
        {"continuous_usage_stats": True},
        {"include_usage": False, "continuous_usage_stats": True},
    ],
)
async def test_usage_comes_last_and_only_when_asked_for(stack: Stack, options: Any) -> None:
    fields = {"stream": True} | ({"stream_options": options} if options else {})
    _, text, _ = await post(stack, chat(**fields))
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    wanted = bool(options and options.get("include_usage"))
    assert [bool(event.get("usage")) for event in events] == [False] * (len(events) - 1) + [wanted]
    if wanted:
        assert events[-1]["choices"] == []
        assert "completion_tokens" in events[-1]["usage"]
    assert text.endswith("data: [DONE]\n\n")


async def test_content_parts_make_the_conversation(stack: Stack) -> None:
    def question(*parts: dict[str, Any]) -> dict[str, Any]:
        return {"role": "user", "content": list(parts)}

    text = {"type": "text", "text": "what is it?"}
    _, _, answer = await stack.ask(question(text, IMAGE))
    said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    assert stack.engines["d0"].requests[0].body["messages"][0]["content"][1] == IMAGE
    assert (await stack.ask(question(text, IMAGE), said, "more"))[0] == "d-local"
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert (await stack.ask(question(text, other), said, "more"))[0] == "p-d"


async def test_tool_calls_make_the_conversation() -> None:
    async with running(P_D) as stack:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        first = [{"role": "user", "content": "x"}]
        assert (await post(stack, chat(messages=first, tools=[TOOL])))[0] == 200
        asked = [
            *first,
            {"role": "assistant", "content": "Paris it is.", "tool_calls": None},
            {"role": "user", "content": "y"},
        ]
        assert (await post(stack, chat(messages=asked, tools=[TOOL])))[2]["x-ppd-route"] == "d-local"
        assert (await post(stack, chat(messages=asked)))[2]["x-ppd-route"] == "p-d"
        result = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        result.append({"role": "tool", "tool_call_id": "call_1", "content": "42"})
        status, _, headers = await post(stack, chat(messages=[*first, *result], tools=[TOOL]))
        assert (status, headers["x-ppd-route"]) == (200, "d-local")  # by the boundary before the answer


async def test_completions_meet_by_an_explicit_id_only() -> None:
    engines = {"p0": Role.PREFILL, **{f"d{i}": Role.DECODE for i in range(4)}}
    async with running(engines) as stack:
        body = {"model": "m", "prompt": "a"}
        loose = {(await post(stack, body, "/v1/completions"))[2]["x-ppd-decode"] for _ in range(8)}
        assert len(loose) > 1
        for way in ({"prompt_cache_key": "k"}, {"conversation": "c"}, {"conversation": {"id": "d"}}):
            bound = {
                (await post(stack, {**body, **way}, "/v1/completions"))[2]["x-ppd-decode"] for _ in range(8)
            }
            assert len(bound) == 1, way


@pytest.mark.parametrize(
    "field",
    [
        "kv_transfer_params",
        "ec_transfer_params",
        "request_id",
        "data_parallel_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_clients_word_on_the_hand_off_changes_nothing(stack: Stack, path: str, field: str) -> None:
    evil = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 1}
    body = chat(prompt="x", input="x", **{field: evil})
    headers = {
        "x-data-parallel-rank": "7",
        "x-prefiller-host-port": "10.0.0.1:1",
        "x-ppd-force-route": "replica",
        "x-ppd-decode": "d9",
        "x-kv-transfer-params": "{}",
        "host": "10.0.0.1",
        "x-forwarded-host": "10.0.0.1",
    }
    async with stack.http.post(stack.url + path, json=body, headers=headers) as response:
        assert response.status == 200
        assert response.headers["x-ppd-decode"] == "d0"
        assert "10.0.0.1" not in await response.text()
    for engine in stack.engines.values():
        for seen in engine.requests:
            assert b"10.0.0.1" not in seen.raw
            assert not {"x-data-parallel-rank", "x-prefiller-host-port", "x-kv-transfer-params"} & set(
                seen.headers
            )
