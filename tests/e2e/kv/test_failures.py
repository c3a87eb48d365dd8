"""Injected failures on real engines: the source killed before the read, and what cancelled turns leave."""

import asyncio
import random

import psutil
import pytest

from ppd.core.names import KV_TRACEPARENT, SPAN_KV_TRANSFER
from tests.e2e.kv.conftest import HOLD_S
from tests.support.kv_engines import Client, Pair, metric, new_traceparent
from tests.support.otlp import ERROR, OtlpSink

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

LEASE_S = 30  # of a prefill engine's blocks, by vLLM


async def test_nothing_leaks_when_a_third_is_cancelled(engines: Pair, client: Client) -> None:
    """300 turns, a third of them cut at a random moment, some held, some pulled back."""
    dice = random.Random(7)
    gate = asyncio.Semaphore(12)
    cut = 0

    async def one(number: int) -> None:
        nonlocal cut
        messages = [{"role": "user", "content": f"{number}: " + "tell me of it. " * dice.randint(3, 30)}]
        deadline_s = dice.uniform(0.02, 2.0) if number % 3 == 0 else 120
        async with gate:
            try:
                async with asyncio.timeout(deadline_s):
                    first = await client.turn(messages, max_tokens=4, hold=number % 2 == 0)
                    if number % 4 == 0:
                        more = [*messages, {"role": "assistant", "content": first.text}]
                        more.append({"role": "user", "content": "Go on."})
                        await client.turn(more, max_tokens=4, pull_back=first.held)
            except TimeoutError:
                cut += 1

    await asyncio.gather(*(one(number) for number in range(300)))
    assert cut >= 60
    for engine in (engines.p, engines.d):
        for _ in range(LEASE_S + HOLD_S + 30):
            if (use := metric(engine.url, "vllm:kv_cache_usage_perc")) == 0:
                break
            await asyncio.sleep(1)
        assert use == 0, f"{engine.worker_id} still holds {use:.1%} of its KV cache"
        assert metric(engine.url, "vllm:num_requests_running") == 0
        assert metric(engine.url, "vllm:num_requests_waiting") == 0


async def test_source_killed_between_prefill_and_read_is_an_error_span(
    engines: Pair, client: Client, sink: OtlpSink
) -> None:
    question = [{"role": "user", "content": "What is the capital of France? " * 10}]
    expected = (await client.local(question))["choices"][0]["message"]["content"]
    body = {"messages": [{"role": "user", "content": "What is the capital of Italy? " * 10}], "max_tokens": 8}
    params = (await client.prefill(body))["kv_transfer_params"]
    for process in psutil.Process(engines.agents["p0"].process.pid).children(recursive=True):
        process.kill()
    traceparent = new_traceparent()
    body |= {"temperature": 0, "kv_transfer_params": {**params, KV_TRACEPARENT: traceparent}}
    answer = await client.post(engines.d.url, body)
    assert answer["choices"][0]["message"]["content"]  # D computed it itself
    trace_id = traceparent.split("-")[1]

    def mine() -> list:
        return [s for s in sink.spans(SPAN_KV_TRANSFER) if s.trace_id == trace_id]

    for _ in range(200):
        if mine():
            break
        await asyncio.sleep(0.1)
    [span] = mine()
    assert span.status == ERROR
    assert span.attributes["error.type"] in {"transfer_setup_failed", "transfer_failed", "handshake_failed"}
    assert (await client.local(question))["choices"][0]["message"]["content"] == expected
    old = engines.p.worker_id
    await engines.new_incarnation("p0", old)
    healed = await client.turn(question, max_tokens=8)
    assert healed.prefill_usage["completion_tokens"] == 1
