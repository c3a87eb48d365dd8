"""OpenAI's parameters, and vLLM's, on real engines: by way of P and on D alone they come to the same."""

import json
from typing import Any

import httpx
import pytest

from tests.e2e.local_stack import ADMIN_KEY, LocalStack
from tests.support.questions import CAPITAL_ANSWER, CAPITAL_QUESTION

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Tokyo"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": PARAMETERS, "strict": True}}
QUESTION = [{"role": "user", "content": CAPITAL_QUESTION}]
CAPITAL = CAPITAL_ANSWER
JSON = '{"city": "Tokyo"}'
AS_JSON = [{"role": "user", "content": f"Answer in JSON, as {JSON}: what is the capital of Japan?"}]
NO = [
    {"role": "user", "content": "Say no five times."},
    {"role": "assistant", "content": "no no no no no"},
    {"role": "user", "content": "Again."},
]
Choice = dict[str, Any]


def ask(stack: LocalStack, route: str, stream: bool, fields: dict[str, Any]) -> list[Choice]:
    """The choices of one turn on the forced `route`, a stream's chunks put together."""
    body = {"model": "smollm2", "temperature": 0, "max_tokens": 12, **fields, "stream": stream}
    answer = httpx.post(
        f"{stack.url}/v1/chat/completions",
        json=body,
        headers={"x-ppd-admin-key": ADMIN_KEY, "x-ppd-force-route": route},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ppd-route"] == route
    assert "kv_transfer_params" not in answer.text
    if not stream:
        return [_choice(each, each["message"]) for each in answer.json()["choices"]]
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    parts: dict[int, list[Choice]] = {}
    for event in map(json.loads, events[:-1]):
        for each in event["choices"]:
            parts.setdefault(each["index"], []).append(_choice(each, each["delta"]))
    return [_joined(parts[index]) for index in sorted(parts)]


def _choice(choice: Choice, message: dict[str, Any]) -> Choice:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "text": message.get("content") or "",
        "calls": "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls),
        "tokens": [each["token"] for each in (choice.get("logprobs") or {}).get("content") or ()],
        "ids": choice.get("token_ids") or [],
        "finish": choice.get("finish_reason"),
        "stop": choice.get("stop_reason"),
    }


def _joined(parts: list[Choice]) -> Choice:
    whole = parts[0]
    for part in parts[1:]:
        for name in ("text", "calls", "tokens", "ids"):
            whole[name] = whole[name] + part[name]
        for name in ("finish", "stop"):
            whole[name] = part[name] or whole[name]
    return whole


# What is asked for, and what the first choice must hold. Rounding differs between processors, and between a
# prefill on P and one on D: noise on all logits (standard deviation .2) changed none of these texts.
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"text": CAPITAL, "finish": "stop"}),
    ({"max_tokens": 1}, {"text": "The", "finish": "length"}),
    (
        {"max_tokens": None, "max_completion_tokens": 5},
        {"text": "The capital of Japan is", "finish": "length"},
    ),
    ({"n": 2, "temperature": 1, "seed": 0, "max_tokens": 8}, {"text": "The capital of Japan is Tokyo. This"}),
    ({"temperature": 1, "seed": 9}, {"text": "The capital of Japan is Tokyo, a major port city in"}),
    ({"temperature": 1, "seed": 9, "top_p": 0.01}, {"text": CAPITAL}),
    ({"temperature": 1, "seed": 9, "top_k": 1, "min_p": 0.1}, {"text": CAPITAL}),
    ({"stop": "Tokyo"}, {"text": "The capital of Japan is ", "finish": "stop", "stop": "Tokyo"}),
    ({"stop": [" is"], "include_stop_str_in_output": True}, {"text": "The capital of Japan is"}),
    ({"stop": ["The"]}, {"text": "", "finish": "stop", "stop": "The"}),  # P's one token ends the answer
    ({"logprobs": True, "top_logprobs": 2}, {"text": CAPITAL}),
    ({"logprobs": True, "return_tokens_as_token_ids": True}, {"text": CAPITAL}),
    ({"logit_bias": {"504": -100, "59": 4}, "max_tokens": 3}, {"text": "Kyoto"}),  # against "The", for "K"
    ({"logit_bias": {"3575": -100}}, {"text": "The Capital of Japan is Tokyo."}),  # against " capital"
    ({"bad_words": ["capital"]}, {"text": "The Capital of Japan is Tokyo."}),
    ({"presence_penalty": 2, "frequency_penalty": 2, "messages": NO}, {"text": "no no no yes again"}),
    ({"repetition_penalty": 0.5}, {"text": "What a capital of Japan? Japan is a Japan, a"}),
    (  # the bias is for " The"
        {"min_tokens": 9, "max_tokens": 9, "logit_bias": {"378": 5}},
        {"text": f"{CAPITAL} The capital"},
    ),
    ({"ignore_eos": True, "max_tokens": 10}, {"finish": "length"}),
    ({"response_format": SCHEMA, "max_tokens": 40, "messages": AS_JSON}, {"text": JSON, "finish": "stop"}),
    ({"response_format": {"type": "json_object"}, "max_tokens": 40, "messages": AS_JSON}, {"text": JSON}),
    ({"structured_outputs": {"choice": ["Rome", "Tokyo"]}}, {"text": "Tokyo", "finish": "stop"}),
    ({"tools": [TOOL], "tool_choice": "none"}, {"text": CAPITAL, "calls": ""}),
    ({"tools": [TOOL], "tool_choice": "auto"}, {"text": CAPITAL}),
    ({"tools": [TOOL], "tool_choice": NAMED, "max_tokens": 60}, {"text": ""}),
    ({"tools": [TOOL], "tool_choice": "required", "max_tokens": 60}, {"text": "", "finish": "tool_calls"}),
    ({"return_token_ids": True}, {"text": CAPITAL}),
    (
        {"chat_template_kwargs": {"x": 1}, "cache_salt": "s", "user": "u", "metadata": {"a": "b"}},
        {"text": CAPITAL},
    ),
]


@pytest.mark.parametrize(("fields", "holds"), CASES, ids=lambda value: "+".join(value) or "-")
def test_every_path_serves_it(real_stack: LocalStack, fields: dict[str, Any], holds: Choice) -> None:
    salt = str([case[0] for case in CASES].index(fields))  # no case finds its prompt cached by another
    asked = {"messages": QUESTION, "cache_salt": salt, **fields}
    answers = {
        (route, stream): ask(real_stack, route, stream, asked)
        for route in ("p-d", "d-local")
        for stream in (False, True)
    }
    first = answers["p-d", False]
    assert all(answer == first for answer in answers.values()), answers
    assert len(first) == fields.get("n", 1)
    assert first[0].items() >= holds.items()
    if fields.get("logprobs"):
        assert len(first[0]["tokens"]) == 8, "the first token's too, which P computed"
    if "tool_choice" in fields and not holds.get("text"):
        assert first[0]["calls"].replace(" ", "") == 'weather{"city":"Tokyo"}'


REFUSED = [
    ({"temperature": 3}, "temperature"),
    ({"stop": 5}, "stop"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 30}, "logprobs"),
    ({"logit_bias": {"9999999": 1}}, "logit_bias"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"max_tokens": 100_000}, "max_tokens"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nope"}},
            }
        },
        None,
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        None,
    ),
]


@pytest.mark.parametrize("route", ["p-d", "d-local"])
@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: "+".join(value or "-"))
def test_every_path_refuses_it_alike(
    real_stack: LocalStack, fields: dict[str, Any], param: str | None, route: str
) -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, **fields}
    headers = {"x-ppd-admin-key": ADMIN_KEY, "x-ppd-force-route": route}
    errors = []
    for stream in (False, True):
        answer = httpx.post(
            f"{real_stack.url}/v1/chat/completions",
            json={**body, "stream": stream},
            headers=headers,
            timeout=60,
        )
        assert answer.status_code == 400
        errors.append(answer.json()["error"])
    assert errors[0] == errors[1]
    assert errors[0]["param"] == param
    assert errors[0]["type"] == "invalid_request_error"
    assert "refused the request" not in errors[0]["message"], "the engine's own words"
