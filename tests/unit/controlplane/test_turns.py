"""The way of a turn: which engine is asked what, and what the client sees."""

from typing import Any

import pytest

from tests.support.answers import events, words
from tests.unit.controlplane.conftest import Stack

pytestmark = pytest.mark.unit


async def test_the_first_turn_goes_through_p_and_later_ones_stay_on_d(stack: Stack) -> None:
    assert (await stack.ask("hi"))[:2] == ("p-d", "first-turn")
    assert (await stack.ask("hi", "Paris it is.", "more"))[0] == "d-local"
    assert len(stack.engines["p0"].requests) == 1
    assert "kv_transfer_params" not in stack.engines["d0"].requests[1].body


async def test_streaming_gives_the_same_text(stack: Stack) -> None:
    whole = (await stack.ask("hi"))[2]["choices"][0]["message"]["content"]
    async with await stack.chat("hi", stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert words(events(await response.text())) == whole


async def test_a_streamed_answer_identifies_the_next_turn(stack: Stack) -> None:
    async with await stack.chat("hi", stream=True) as response:
        await response.read()
    assert (await stack.ask("hi", "Paris it is.", "more"))[0] == "d-local"


async def test_two_chats_that_begin_alike_do_not_share_a_session(stack: Stack) -> None:
    await stack.ask("hi")
    stack.engines["d0"].words = ["Rome"]
    await stack.ask("hi")
    await stack.ask("hi", "Paris it is.", "more")
    await stack.ask("hi", "Rome", "more")
    ids = [record.session_id for record in stack.frontend.ledger.recent]
    assert ids[0] == ids[2]
    assert ids[1] == ids[3]
    assert ids[0] != ids[1]


async def test_usage_is_asked_for_and_kept_from_a_client_that_did_not_ask(stack: Stack) -> None:
    async with await stack.chat("hi", stream=True) as response:
        streamed = events(await response.text())
    assert stack.engines["d0"].requests[0].body["stream_options"] == {"include_usage": True}
    assert all(event["choices"] and "usage" not in event for event in streamed)
    assert stack.frontend.ledger.recent[-1].n_out_tokens == 5


async def test_usage_is_the_last_chunk_for_a_client_that_asked(stack: Stack) -> None:
    options = {"include_usage": True, "odd": 1}
    async with await stack.chat("hi", stream=True, stream_options=options) as response:
        streamed = events(await response.text())
    assert streamed[-1]["choices"] == []
    assert streamed[-1]["usage"]["completion_tokens"] == 5
    assert streamed[-1]["usage"]["odd_new_field"] == 1
    assert stack.engines["d0"].requests[0].body["stream_options"] == options


async def test_usage_reports_what_p_had_cached_on_a_hand_off(stack: Stack) -> None:
    stack.engines["p0"].cached, stack.engines["d0"].cached = 7, 30
    _, _, answer = await stack.ask("hi")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 7
    _, _, answer = await stack.ask("hi", "Paris it is.", "more")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 30
    first, second = stack.frontend.ledger.recent
    assert (first.cached_tokens_prefill, first.cached_tokens_decode) == (7, -1)
    assert second.cached_tokens_decode == 30


async def test_p_is_asked_for_one_token_by_every_alias(stack: Stack) -> None:
    async with await stack.chat(
        "hi", max_tokens=100, max_completion_tokens=50, min_tokens=10, stream=True, temperature=0.5, n=1
    ) as response:
        await response.read()
    asked = stack.engines["p0"].requests[0].body
    assert {k: asked[k] for k in ("max_tokens", "max_completion_tokens", "min_tokens")} == {
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "min_tokens": 1,
    }
    assert asked.keys().isdisjoint({"stream", "stream_options", "n"})
    assert asked["temperature"] == 0.5
    served = stack.engines["d0"].requests[0].body
    assert (served["max_tokens"], served["max_completion_tokens"], served["min_tokens"]) == (100, 50, 10)


async def test_d_gets_ps_parameters_whole_and_the_request_id(stack: Stack) -> None:
    await stack.ask("hi")
    params = stack.engines["d0"].requests[0].body["kv_transfer_params"]
    assert params["remote_engine_id"] == "p0"
    assert params["remote_request_id"] == "r1"
    assert params["ppd_request_id"] == stack.frontend.ledger.recent[-1].request_id


async def test_the_bodys_order_and_bytes_are_kept(stack: Stack) -> None:
    tools = b'[{"type":"function" ,"function":{"parameters":{"z":1.0,"a":1e3},"name":"f"}}]'
    body = (
        b'{"tools": %b, "model":"m","weird":"\\u00e9\\/","messages":[ {"content":"x","role":"user"} ]}'
        % tools
    )
    async with stack.http.post(
        f"{stack.url}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
    ) as response:
        assert response.status == 200
    raw = stack.engines["d0"].requests[0].raw
    assert raw.startswith(
        b'{"tools":%b,"model":"m","weird":"\\u00e9\\/","messages":[ {"content":"x","role":"user"} ]' % tools
    )


async def test_internals_never_reach_the_client(stack: Stack) -> None:
    stack.engines["d0"].words = ["hello"]
    async with await stack.chat("hi") as response:
        text = await response.text() + str(response.headers)
    async with await stack.chat("hi", stream=True) as response:
        text += await response.text() + str(response.headers)
    assert "kv_transfer_params" not in text
    assert "127.0.0.1" not in text
    assert str(stack.engines["d0"].port) not in text


async def test_fields_that_reach_into_the_hand_off_are_dropped(stack: Stack) -> None:
    evil = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 1, "remote_block_ids": [1]}
    await stack.ask("hi")
    route, _, _ = await stack.ask(
        "hi", "Paris it is.", "more", kv_transfer_params=evil, data_parallel_rank=3, request_id="x"
    )
    assert route == "d-local"
    asked = stack.engines["d0"].requests[-1].body
    assert asked.keys().isdisjoint({"kv_transfer_params", "data_parallel_rank", "request_id"})


async def test_routing_headers_of_clients_change_nothing(stack: Stack) -> None:
    headers = {"x-ppd-force-route": "replica", "x-ppd-admin-key": "guess", "x-data-parallel-rank": "1"}
    route, reason, _ = await stack.ask("hi", headers=headers)
    assert (route, reason) == ("p-d", "first-turn")
    assert "x-data-parallel-rank" not in stack.engines["d0"].requests[0].headers


@pytest.mark.parametrize("odd", [{"n": 2}, {"prompt_logprobs": 1}, {"echo": True}, {"use_beam_search": True}])
async def test_what_cannot_be_handed_off_runs_on_one_engine(stack: Stack, odd: dict[str, Any]) -> None:
    assert (await stack.ask("hi", **odd))[:2] == ("d-local", "one-engine")
    assert not stack.engines["p0"].requests


async def test_completions_with_several_prompts_run_on_one_engine(stack: Stack) -> None:
    for prompt in (["a", "b"], [[1, 2], [3]]):
        body = {"model": "m", "prompt": prompt}
        async with stack.http.post(f"{stack.url}/v1/completions", json=body) as response:
            assert response.headers["x-ppd-reason"] == "one-engine"


async def test_completions_are_handed_off_too(stack: Stack) -> None:
    for prompt in ("a text", [1, 2, 3]):
        body = {"model": "m", "prompt": prompt, "stream": True}
        async with stack.http.post(f"{stack.url}/v1/completions", json=body) as response:
            assert response.headers["x-ppd-route"] == "p-d"
            text = "".join(event["choices"][0]["text"] for event in events(await response.text()))
            assert text == "Paris it is."


async def test_an_explicit_id_narrows_and_matches_exactly(stack: Stack) -> None:
    await stack.ask("hi", headers={"x-session-id": "a"})
    assert (await stack.ask("hi", "Paris it is.", "more", headers={"x-session-id": "a"}))[0] == "d-local"
    for other in ("ab", "", "A"):
        route, reason, _ = await stack.ask("hi", "Paris it is.", "more", headers={"x-session-id": other})
        assert (route, reason) == ("p-d", "not-cached")


async def test_a_compacted_history_under_an_id_keeps_its_d_without_assuming_a_cache(stack: Stack) -> None:
    await stack.ask("hi", prompt_cache_key="a")
    route, reason, _ = await stack.ask("summary", "yes", "more", prompt_cache_key="a")
    assert (route, reason) == ("p-d", "not-cached")


async def test_the_next_turns_new_tokens_alone_are_counted(stack: Stack) -> None:
    await stack.ask("hi " * 500)
    await stack.ask("hi " * 500, "Paris it is.", "more")
    first, second = stack.frontend.ledger.recent
    assert second.n_ctx_tokens == first.n_prompt_tokens + first.n_out_tokens
    assert second.n_in_tokens < 20
    assert second.turn == 2
    assert second.n_out_predicted_tokens == 5
    assert second.expected_cached_tokens == second.n_ctx_tokens


async def test_the_clients_request_id_comes_back_and_ours_goes_to_the_engines(stack: Stack) -> None:
    async with await stack.chat("hi", headers={"x-request-id": "mine-1"}) as response:
        assert response.headers["x-request-id"] == "mine-1"
    assert stack.engines["d0"].requests[0].headers["x-request-id"].startswith("mine-1-")
    async with await stack.chat("hi", headers={"x-request-id": "bad id"}) as response:
        assert response.headers["x-request-id"] != "bad id"


async def test_connections_to_engines_are_kept(stack: Stack) -> None:
    for _ in range(5):
        await stack.ask("hi")
    assert stack.engines["p0"].connections == 1
    assert stack.engines["d0"].connections == 1


async def test_no_reservation_outlives_its_turn(stack: Stack) -> None:
    await stack.ask("hi")
    async with await stack.chat("hi", stream=True) as response:
        await response.read()
    for worker in stack.frontend.cluster.workers.values():
        assert (worker.running, worker.prefill_tokens) == (0, 0)
    assert stack.frontend.gate.running == 0
