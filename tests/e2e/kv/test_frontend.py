"""Pull-back and hang-ups through the frontend, on real engines."""

import asyncio
import itertools
import random

import aiohttp
import nats
import pytest

from ppd.core.names import SPAN_DECODE, SPAN_KV_TRANSFER, SPAN_PREFILL
from ppd.core.records import TurnRecord, decode
from tests.e2e.kv.conftest import HOLD_S
from tests.e2e.kv.frontend import Answer, Frontend, ask
from tests.support.kv_engines import Pair, metric
from tests.support.nats_client import settled
from tests.support.otlp import OtlpSink

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Messages = list[dict[str, str]]
FOLLOW_UPS = ["Why is that?", "Say it in other words.", "And what is the opposite?"]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def _chat(
    session: aiohttp.ClientSession,
    frontend: Frontend,
    first: str,
    force: str,
    stream: bool = False,
    session_id: str = "",
) -> list[Answer]:
    """Four turns; all but the first are forced onto one path, each asked as soon as the last is answered."""
    messages: Messages = []
    answers: list[Answer] = []
    for question in (first, *FOLLOW_UPS):
        messages.append(_user(question))
        forced = force if answers else ""
        answers.append(await ask(session, frontend, messages, forced, stream=stream, session_id=session_id))
        messages.append({"role": "assistant", "content": answers[-1].text})
    return answers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pull_back_is_taken_and_is_in_the_turns_trace_and_record(
    engines: Pair, frontend: Frontend, sink: OtlpSink, stream: bool
) -> None:
    records: list[TurnRecord] = []

    async def keep(message) -> None:
        records.append(decode(message.data, TurnRecord))

    nc = await nats.connect(engines.nats.url)
    await nc.subscribe("ppd.*.turns.>", cb=keep)
    await settled(nc)
    first = f"Tell me how bread is made, {'bit by bit' if stream else 'all at once'}, and of what. " * 6
    async with aiohttp.ClientSession() as session:
        answers = await _chat(session, frontend, first, "p-d-pullback", stream)
    assert [answer.path for answer in answers] == ["p-d", *["p-d-pullback"] * 3]
    assert all(answer.reason == "forced" for answer in answers[1:])
    for _ in range(100):
        if len(records) == 4 and all(record.kv_bytes for record in records):
            break
        await asyncio.sleep(0.1)
    await nc.close()
    by_trace = {record.trace_id: record for record in records}
    for earlier, answer in itertools.pairwise(answers):
        record = by_trace[answer.trace_id]
        known = by_trace[earlier.trace_id]
        held_tokens = known.n_prompt_tokens + known.n_out_tokens - 1
        assert answer.cached_tokens >= held_tokens - engines.p.block_size_tokens
        await asyncio.to_thread(sink.wait_for, SPAN_KV_TRANSFER, 2)

        def spans(name: str, trace_id: str = answer.trace_id) -> list:
            return [s for s in sink.spans(name) if s.trace_id == trace_id]

        for _ in range(100):
            if len(spans(SPAN_KV_TRANSFER)) == 2 and spans(SPAN_DECODE):
                break
            await asyncio.sleep(0.1)
        parents = {s.attributes["kv.direction"]: s.parent_id for s in spans(SPAN_KV_TRANSFER)}
        [prefill], [decoding] = spans(SPAN_PREFILL), spans(SPAN_DECODE)
        assert parents == {"d-p": prefill.span_id, "p-d": decoding.span_id}
        assert record.kv_bytes == sum(s.attributes["kv.bytes"] for s in spans(SPAN_KV_TRANSFER))
        assert record.kv_transfer_ms > 0


@pytest.mark.slow
async def test_pull_back_gives_the_text_of_the_other_paths(engines: Pair, frontend: Frontend) -> None:
    topics = ["rivers", "bread", "the moon", "chess", "rain", "bees", "salt", "music", "iron", "tea"]
    firsts = [f"I am person {i}. What should I know about {topics[i % 10]}?" for i in range(20)]
    gate = asyncio.Semaphore(8)

    async def chat(session: aiohttp.ClientSession, number: int, force: str) -> list[Answer]:
        own_id = f"{force}-{number}"  # else it would be the conversation of the path before, asked again
        async with gate:
            return await _chat(session, frontend, firsts[number], force, number % 2 == 0, own_id)

    texts: dict[str, list[list[str]]] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:
        for force in ("p-d", "d-local", "p-d-pullback"):
            for engine in (engines.p, engines.d):  # so that one path does not live on another's cache
                async with session.post(engine.url + "/reset_prefix_cache") as reply:
                    assert reply.status == 200
            chats = await asyncio.gather(*(chat(session, number, force) for number in range(len(firsts))))
            paths = [answer.path for answers in chats for answer in answers[1:]]
            assert paths == [force] * 60
            texts[force] = [[answer.text for answer in answers] for answers in chats]
    assert texts["d-local"] == texts["p-d"]
    assert texts["p-d-pullback"] == texts["p-d"]


@pytest.mark.slow
async def test_nothing_leaks_when_clients_hang_up(engines: Pair, frontend: Frontend) -> None:
    """300 turns on all three paths, a third of them hung up on at a random moment."""
    dice = random.Random(11)
    gate = asyncio.Semaphore(12)
    cut = 0

    async def chat(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal cut
        messages = [_user(f"Chat {number}. " + "Tell me of it. " * dice.randint(3, 30))]
        for turn in range(3):
            force = dice.choice(["p-d", "d-local", "p-d-pullback"]) if turn else ""
            hangs_up = (number + turn) % 3 == 0
            text = "I see."
            async with gate:
                try:
                    async with asyncio.timeout(dice.uniform(0.02, 1.5) if hangs_up else 120):
                        text = (
                            await ask(session, frontend, messages, force, stream=dice.random() < 0.5)
                        ).text
                except TimeoutError:
                    assert hangs_up
                    cut += 1
            messages += [{"role": "assistant", "content": text}, _user("Go on.")]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:
        await asyncio.gather(*(chat(session, number) for number in range(100)))
    assert cut >= 60
    for engine, within_s in ((engines.p, 15), (engines.d, HOLD_S + 15)):
        for _ in range(within_s):
            if (use := metric(engine.url, "vllm:kv_cache_usage_perc")) == 0:
                break
            await asyncio.sleep(1)
        assert use == 0, f"{engine.worker_id} still holds {use:.1%} of its KV cache"
        assert metric(engine.url, "vllm:num_requests_running") == 0
        assert metric(engine.url, "vllm:num_requests_waiting") == 0
