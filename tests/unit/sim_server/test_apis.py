"""Messages, Responses, adapters and second names, as vLLM serves them."""

import json

import pytest

from ppd.core.names import Role

pytestmark = pytest.mark.unit

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
QUESTION = [{"role": "user", "content": "Tell me of the sea. " * 40}]
FIELDS = {
    CHAT: {"messages": QUESTION, "max_tokens": 9},
    MESSAGES: {"messages": QUESTION, "max_tokens": 9},
    RESPONSES: {"input": QUESTION, "max_output_tokens": 9},
}
FOR_P = {"do_remote_decode": True, "do_remote_prefill": False}


def body(path, **fields):
    return {"model": "m", **FIELDS[path], **fields}


def said(answer):
    if "choices" in answer:
        return answer["choices"][0]["message"]["content"]
    blocks = answer["content"] if "content" in answer else answer["output"][0]["content"]
    return "".join(block["text"] for block in blocks)


async def events(running, path, **fields):
    """(name, data) of each event of a streamed answer."""
    found = []
    async with running._session.post(running.url + path, json=body(path, stream=True, **fields)) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        for event in (await reply.text()).strip().split("\n\n"):
            name, _, data = event.partition("\ndata: ")
            found.append((name.removeprefix("event: "), json.loads(data)))
    assert all(name == data["type"] for name, data in found)
    return found


async def test_the_same_prompt_gives_the_same_answer_in_each(start):
    running = await start()
    answers = {path: await running.post(path, body(path)) for path in FIELDS}
    assert len({said(answer) for answer in answers.values()}) == 1
    usage = answers[CHAT]["usage"]
    cached = answers[MESSAGES]["usage"]["cache_read_input_tokens"]
    assert answers[MESSAGES]["usage"]["input_tokens"] + cached == usage["prompt_tokens"]
    assert cached > 0
    assert answers[RESPONSES]["usage"]["input_tokens"] == usage["prompt_tokens"]
    assert answers[MESSAGES]["stop_reason"] == "max_tokens"
    assert answers[RESPONSES]["status"] == "incomplete"


async def test_streams_have_the_events_of_their_api(start):
    running = await start()
    text = said(await running.post(CHAT, body(CHAT)))
    messages = await events(running, MESSAGES)
    assert [name for name, _ in messages[:2]] == ["message_start", "content_block_start"]
    assert [name for name, _ in messages[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [data["delta"]["text"] for name, data in messages if name == "content_block_delta"]
    assert "".join(deltas) == text
    responses = await events(running, RESPONSES)
    assert [name for name, _ in responses[:2]] == ["response.created", "response.in_progress"]
    assert responses[-1][0] == "response.completed"
    assert [data["sequence_number"] for _, data in responses] == list(range(len(responses)))
    deltas = [data["delta"] for name, data in responses if name == "response.output_text.delta"]
    assert "".join(deltas) == text == said(responses[-1][1]["response"])


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
async def test_they_are_handed_from_p_to_d(start, path):
    p, d = await start(Role.PREFILL), await start(Role.DECODE)
    limit = "max_tokens" if path == MESSAGES else "max_output_tokens"
    first = await p.post(path, body(path, kv_transfer_params=FOR_P, **{limit: 1}))
    params = first["kv_transfer_params"]
    assert params["do_remote_prefill"]
    answer = await d.post(path, body(path, kv_transfer_params=params))
    assert d.server.driver.pulled_tokens > 0
    assert said(answer).startswith(said(first))


async def test_errors_have_the_shape_of_their_api(start):
    running = await start()
    answer = await running.post(MESSAGES, body(MESSAGES, model="nope"), expect=404)
    assert (answer["type"], answer["error"]["type"]) == ("error", "NotFoundError")
    answer = await running.post(RESPONSES, body(RESPONSES, previous_response_id="resp_x"), expect=404)
    assert answer["error"]["message"] == "Response with id 'resp_x' not found."


async def test_responses_are_kept_and_continued(start):
    running = await start()
    first = await running.post(RESPONSES, body(RESPONSES))
    path = f"{RESPONSES}/{first['id']}"
    assert said(await running.get(path)) == said(first)
    listed = await running.get(path + "/input_items")
    assert [item["content"] for item in listed["data"]] == [QUESTION[0]["content"]]
    more = {"model": "m", "input": "And?", "max_output_tokens": 9, "previous_response_id": first["id"]}
    continued = await running.post(RESPONSES, more)
    history = [*QUESTION, {"role": "assistant", "content": said(first)}, {"role": "user", "content": "And?"}]
    whole = await running.post(RESPONSES, {"model": "m", "input": history, "max_output_tokens": 9})
    assert said(continued) == said(whole)
    assert (await running.post(path + "/cancel", expect=400))["error"]["message"]
    async with running._session.delete(running.url + path) as reply:
        assert (await reply.json())["deleted"]
    async with running._session.get(running.url + path) as reply:
        assert reply.status == 404
    unkept = await running.post(RESPONSES, body(RESPONSES, store=False))
    async with running._session.get(f"{running.url}{RESPONSES}/{unkept['id']}") as reply:
        assert reply.status == 404


async def test_adapters_come_and_go_and_have_kv_of_their_own(start):
    running = await start(served_model_name=("m", "second"))
    load = {"lora_name": "french", "lora_path": "/adapters/french"}
    await running.post(CHAT, body(CHAT, model="french"), expect=404)
    for fields, status in (({}, 400), (load, 200), (load, 400)):
        await running.post("/v1/load_lora_adapter", fields, expect=status)
    listed = (await running.get("/v1/models"))["data"]
    assert [(card["id"], card["parent"]) for card in listed] == [
        ("m", None),
        ("second", None),
        ("french", "m"),
    ]

    async def cached(model):
        answer = await running.post(CHAT, body(CHAT, model=model))
        assert answer["model"] == model
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert await cached("m") == 0
    assert await cached("second") > 0
    assert await cached("french") == 0
    assert await cached("french") > 0
    for fields, status in (({}, 400), ({"lora_name": "french"}, 200), ({"lora_name": "french"}, 404)):
        await running.post("/v1/unload_lora_adapter", fields, expect=status)
    await running.post(CHAT, body(CHAT, model="french"), expect=404)


async def test_counting_and_the_way_back(start):
    running = await start()
    counted = await running.post("/v1/messages/count_tokens", {"model": "m", "messages": QUESTION})
    answer = await running.post(CHAT, body(CHAT))
    assert counted["input_tokens"] == answer["usage"]["prompt_tokens"]
    assert (await running.post("/detokenize", {"model": "m", "tokens": [1, 2]}))["prompt"] == "00010002"
