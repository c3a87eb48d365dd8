"""The pull-back path on real engines: the same greedy text as the other paths, and KV in both directions."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from ppd.core.names import SPAN_KV_TRANSFER
from tests.e2e.kv.conftest import HOLD_S
from tests.support.kv_engines import Client, Pair, Turn, metric
from tests.support.otlp import OtlpSink
from tests.support.questions import CAPITAL_ANSWER, CAPITAL_QUESTION

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

CHATS, TURNS, ANSWER_TOKENS = 20, 4, 8
TOPICS = ["rivers", "bread", "the moon", "chess", "rain", "bees", "salt", "music", "iron", "tea"]


async def _forget(engines: Pair) -> None:
    """Both engines' prefix caches, emptied, so that one path does not live on another's."""
    async with aiohttp.ClientSession() as session:
        for engine in (engines.p, engines.d):
            async with session.post(engine.url + "/reset_prefix_cache") as reply:
                assert reply.status == 200


def _questions(chat: int) -> list[str]:
    topic = TOPICS[chat % len(TOPICS)]
    first = f"I am person {chat}. In a few sentences, what should I know about {topic}?"
    return [first, f"Why is {topic} of use?", "Say that in other words.", "And what is the opposite?"]


async def _chats(one_turn: Callable[[int, int, list], Awaitable[str]]) -> list[list[str]]:
    """The answers of all chats, ten of them at a time."""
    gate = asyncio.Semaphore(10)

    async def chat(number: int) -> list[str]:
        messages: list[dict[str, str]] = []
        async with gate:
            for turn, question in enumerate(_questions(number)):
                messages.append({"role": "user", "content": question})
                messages.append({"role": "assistant", "content": await one_turn(number, turn, messages[:])})
        return [m["content"] for m in messages[1::2]]

    return list(await asyncio.gather(*(chat(number) for number in range(CHATS))))


async def test_all_paths_give_the_same_greedy_text(engines: Pair, client: Client, sink: OtlpSink) -> None:
    async def plain(chat: int, turn: int, messages: list) -> str:
        return (await client.turn(messages, ANSWER_TOKENS)).text

    async def local(chat: int, turn: int, messages: list) -> str:
        if turn == 0:
            return (await client.turn(messages, ANSWER_TOKENS)).text
        return (await client.local(messages, ANSWER_TOKENS))["choices"][0]["message"]["content"]

    last: dict[int, Turn] = {}
    lacking: list[int] = []

    async def pulled_back(chat: int, turn: int, messages: list) -> str:
        before = last.get(chat)
        held = before.held if before else None
        now = last[chat] = await client.turn(messages, ANSWER_TOKENS, hold=True, pull_back=held)
        if held:
            cached = now.prefill_usage["prompt_tokens_details"]["cached_tokens"]
            lacking.append(held["remote_num_tokens"] - cached)
        return now.text

    by_plain = await _chats(plain)
    await _forget(engines)
    by_local = await _chats(local)
    await _forget(engines)
    before = len(sink.spans(SPAN_KV_TRANSFER))
    back_before = metric(engines.p.url, "vllm:nixl_bytes_transferred_count")
    by_pullback = await _chats(pulled_back)
    assert by_local == by_plain
    assert by_pullback == by_plain
    assert len(lacking) == CHATS * (TURNS - 1)
    assert max(lacking) <= engines.p.block_size_tokens
    pulls = metric(engines.p.url, "vllm:nixl_bytes_transferred_count") - back_before
    await asyncio.to_thread(sink.wait_for, SPAN_KV_TRANSFER, before + int(pulls) + CHATS * TURNS)
    directions = [s.attributes["kv.direction"] for s in sink.spans(SPAN_KV_TRANSFER)[before:]]
    assert directions.count("d-p") == pulls > CHATS
    assert directions.count("p-d") >= CHATS * TURNS


async def test_params_of_another_history_change_no_answer(engines: Pair, client: Client) -> None:
    """The beginning is the same, then the history was edited, or it is another chat altogether."""
    messages = [{"role": "user", "content": q} for q in _questions(3)[:1]]
    for edited in ("I said nothing of that kind, and there is more to it than you think.", "No."):
        await _forget(engines)
        held = (await client.turn(messages, hold=True, max_tokens=24)).held
        other = [*messages, {"role": "assistant", "content": edited}, {"role": "user", "content": "Go on."}]
        with_params = await client.turn(other, pull_back=held)
        await _forget(engines)
        assert with_params.text == (await client.turn(other)).text
    held = (await client.turn(messages, hold=True, max_tokens=24)).held
    stranger = [{"role": "user", "content": CAPITAL_QUESTION}]
    assert (await client.turn(stranger, pull_back=held)).text == CAPITAL_ANSWER


async def _directions(sink: OtlpSink, turn: Turn) -> list[str]:
    """Of the transfers in a turn's trace, once its hand-off to D is there."""
    trace_id = turn.traceparent.split("-")[1]
    for _ in range(100):
        found = [s for s in sink.spans(SPAN_KV_TRANSFER) if s.trace_id == trace_id]
        directions = [s.attributes["kv.direction"] for s in found]
        if "p-d" in directions:
            break
        await asyncio.sleep(0.1)
    return sorted(directions)


async def test_used_params_change_no_answer(engines: Pair, client: Client, sink: OtlpSink) -> None:
    messages = [{"role": "user", "content": _questions(5)[0]}]
    first = await client.turn(messages, hold=True, max_tokens=24)
    more = [*messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": "Go on."}]
    once = await client.turn(more, pull_back=dict(first.held))
    await _forget(engines)
    again = await client.turn(more, pull_back=dict(first.held))
    assert again.text == once.text
    assert await _directions(sink, once) == ["d-p", "p-d"]
    assert await _directions(sink, again) == ["p-d"]  # what D had held may be another's by now


async def test_expired_params_change_no_answer_and_are_an_error_span(
    engines: Pair, client: Client, sink: OtlpSink
) -> None:
    messages = [{"role": "user", "content": _questions(7)[0]}]
    first = await client.turn(messages, hold=True, max_tokens=24)
    more = [*messages, {"role": "assistant", "content": first.text}, {"role": "user", "content": "Go on."}]
    await asyncio.sleep(HOLD_S - 4)
    late = await client.turn(more, pull_back=dict(first.held))
    trace_id = late.traceparent.split("-")[1]

    def failed() -> list:
        return [s for s in sink.spans(SPAN_KV_TRANSFER) if s.trace_id == trace_id and s.status == 2]

    for _ in range(100):
        if failed():
            break
        await asyncio.sleep(0.1)
    [span] = failed()
    assert span.attributes["kv.direction"] == "d-p"
    assert span.attributes["error.type"] == "expired"
    await _forget(engines)
    assert late.text == (await client.turn(more)).text
