"""vLLM's surface as the control plane uses it, the faults, and the text's laws."""

import asyncio
import json

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core.names import Role
from workers.engine.metrics import EngineSample, cache_info
from workers.sim import text

pytestmark = pytest.mark.unit
HELLO = [{"role": "user", "content": "Hello, who are you?"}]


async def events(reply):
    return [line[6:] async for raw in reply.content if (line := raw.decode().strip()).startswith("data: ")]


async def test_streaming_gives_the_same_text_as_not_streaming(start):
    r = await start()
    whole = await r.chat(HELLO, max_tokens=50)
    options = {"include_usage": True}
    body = {"model": "m", "messages": HELLO, "max_tokens": 50, "stream_options": options}
    async with r.stream(body) as reply:
        *chunks, usage, done = await events(reply)
    assert done == "[DONE]"
    parsed = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert parsed[0]["delta"]["role"] == "assistant"
    assert "".join(c["delta"].get("content", "") for c in parsed) == whole["choices"][0]["message"]["content"]
    assert [c["finish_reason"] for c in parsed if c["finish_reason"]] == [
        whole["choices"][0]["finish_reason"]
    ]
    assert json.loads(usage)["choices"] == []
    assert json.loads(usage)["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_moved_stream_goes_on_where_it_was(start):
    r = await start(mean_output_tokens=0)
    whole = (await r.chat(HELLO, max_tokens=40))["choices"][0]["message"]["content"]
    for sent in (1, 7, 39):
        part = whole[: sent * 4]
        messages = [*HELLO, {"role": "assistant", "content": part}]
        options = {"continue_final_message": True, "add_generation_prompt": False}
        rest = await r.chat(messages, max_tokens=40 - sent, **options)
        assert part + rest["choices"][0]["message"]["content"] == whole


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"model":"x","messages":[{"role":"user","content":"a"}]}', 404),
        (b'{"model":"m","messages":[]}', 400),
        (b'{"model":"m","messages":[{"role":"user","content":"a"}],"stream_options":{}}', 400),
        (b'{"model":"m","messages":[{"role":"user","content":"a"}],"max_tokens":0}', 400),
        (b'{"model":"m","messages":[{"role":"user","content":"a"}],"n":1000}', 400),
        (json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 9000}]}).encode(), 400),
    ],
)
async def test_bad_requests_get_openais_error_shape(start, body, status):
    r = await start(max_model_len=2000)
    reply = await r.post("/v1/chat/completions", data=body, expect=status)
    assert reply["error"]["code"] == status
    assert reply["error"]["message"]


async def test_stop_strings_several_choices_and_lists_of_prompts(start):
    r = await start(mean_output_tokens=0)
    text_of = (await r.chat(HELLO, max_tokens=30))["choices"][0]["message"]["content"]
    stop = text_of.split()[5]
    stopped = (await r.chat(HELLO, max_tokens=30, stop=stop))["choices"][0]
    assert stopped["finish_reason"] == "stop"
    assert stopped["message"]["content"] == text_of[: text_of.index(stop)]
    three = (await r.chat(HELLO, max_tokens=5, n=3))["choices"]
    assert len({c["message"]["content"] for c in three}) == 3
    reply = await r.post("/v1/completions", {"model": "m", "prompt": ["one", "two"], "max_tokens": 3})
    assert [c["index"] for c in reply["choices"]] == [0, 1]


async def test_a_client_that_hangs_up_frees_its_blocks(start):
    r = await start(speed=1.0, mean_output_tokens=0)
    async with r.stream({"model": "m", "messages": HELLO, "max_tokens": 5000}) as reply:
        await reply.content.readany()
        assert r.engine.running == 1
        reply.close()
    await r.until(lambda: r.engine.running == 0 and r.engine.pool.in_use == 0)


async def test_abort_requests_ends_a_request_and_a_lease(start):
    p = await start(Role.PREFILL)
    kv = {"do_remote_decode": True, "do_remote_prefill": False}
    left = (await p.chat(HELLO * 4, max_tokens=1, kv=kv))["kv_transfer_params"]
    assert p.engine.leased == 1
    await p.post("/inference/v1/abort_requests", {"request_ids": [left["remote_request_id"]]})
    assert p.engine.leased == 0


async def test_the_agent_can_read_its_metrics(start):
    r = await start()
    await r.chat(HELLO * 20, max_tokens=30, ignore_eos=True)
    await r.chat(HELLO * 20, max_tokens=30, ignore_eos=True)
    page = await r.get("/metrics")
    sample = EngineSample.parse(page)
    assert sample.generation_tokens == 60
    assert sample.prefill_tokens == r.engine.prefilled_tokens > 0
    assert sample.prefix_hits == r.engine.pool.hit_tokens > 0
    assert sample.tpot_count == 2
    assert int(cache_info(page)["block_size"]) == 16
    only = await r.get("/metrics?name[]=vllm:num_requests_running")
    assert len(only.splitlines()) == 2


async def test_injected_errors_are_as_many_as_asked_for(start):
    r = await start()
    await r.post("/sim/faults", {"error_count": 2, "error_status": 503})
    body = {"model": "m", "messages": HELLO, "max_tokens": 2}
    for status in (503, 503, 200):
        await r.post("/v1/chat/completions", body, expect=status)
    await r.post("/sim/faults", {"no_such": 1}, expect=400)


async def test_a_stalled_engine_goes_on_where_it_stopped(start):
    r = await start()
    await r.post("/sim/faults", {"stalled": True})
    waiting = asyncio.create_task(r.chat(HELLO, max_tokens=5))
    await r.until(lambda: r.engine.waiting == 1)
    steps = r.engine.steps
    await asyncio.sleep(0.1)
    assert r.engine.steps == steps
    await r.post("/sim/faults", {"stalled": False})
    assert (await waiting)["usage"]["completion_tokens"] > 0


async def test_eviction_forgets_a_conversation(start):
    r = await start()
    for expected in (False, True):
        reply = await r.chat(HELLO * 20, max_tokens=5)
        assert (reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == expected
    await r.post("/sim/evict")
    reply = await r.chat(HELLO * 20, max_tokens=5)
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_cut_stream_ends_without_an_end(start):
    r = await start(mean_output_tokens=0)
    await r.post("/sim/faults", {"drop_after_tokens": 5})
    async with r.stream({"model": "m", "messages": HELLO, "max_tokens": 50}) as reply:
        with pytest.raises(aiohttp.ClientError):
            await reply.read()


@given(st.text(max_size=300), st.integers(1, 40), st.integers(0, 40))
def test_an_answers_beginning_is_followed_by_its_rest(prompt, limit, cut):
    tokens, _ = text.answer(prompt, limit, 20.0)
    begun = tokens[:cut]
    rest, _ = text.answer(prompt + "".join(begun), limit - len(begun), 20.0)
    if len(begun) < len(tokens):
        assert begun + rest == tokens


@given(st.text(max_size=400), st.text(max_size=400))
def test_equal_block_keys_mean_an_equal_beginning(a, b):
    keys_a, keys_b = list(text.block_keys(a, 4)), list(text.block_keys(b, 4))
    shared = len([1 for x, y in zip(keys_a, keys_b, strict=False) if x == y])
    assert a[: 16 * shared] == b[: 16 * shared]
    more = list(text.block_keys(a + b, 4))
    assert more[: len(keys_a)] == keys_a
