"""An injected failure on real engines: the source is killed between prefill and read."""

import asyncio

import psutil
import pytest

from ppd.core.names import KV_TRACEPARENT, SPAN_KV_TRANSFER
from tests.support.kv_engines import Client, Pair, new_traceparent
from tests.support.otlp import ERROR, OtlpSink

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

# By how far NIXL had got when the source went.
CAUSES = {"handshake_failed", "transfer_setup_failed", "transfer_exception", "transfer_failed"}


async def test_source_killed_between_prefill_and_read_is_an_error_span(
    engines: Pair, client: Client, sink: OtlpSink
) -> None:
    question = [{"role": "user", "content": "What is the capital of Japan? " * 10}]
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
    assert span.attributes["error.type"] in CAUSES
    assert (await client.local(question))["choices"][0]["message"]["content"] == expected
    old = engines.p.worker_id
    await engines.new_incarnation("p0", old)
    healed = await client.turn(question, max_tokens=8)
    assert healed.prefill_usage["completion_tokens"] == 1
