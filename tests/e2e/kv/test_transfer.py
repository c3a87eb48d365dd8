"""A span for every KV transfer, on real engines: counts, bytes, parents, reports on NATS."""

import asyncio

import nats
import pytest

from ppd.core.names import SPAN_KV_TRANSFER, kv_held_subject, kv_moved_subject
from ppd.core.records import KvHeld, KvMoved, decode
from tests.support.kv_engines import Client, Pair, metric
from tests.support.nats_client import settled
from tests.support.otlp import OtlpSink

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


class Reports:
    """What the agents published, while entered."""

    def __init__(self, engines: Pair) -> None:
        self._url, self._namespace = engines.nats.url, engines.namespace
        self.moved: list[KvMoved] = []
        self.held: list[KvHeld] = []

    async def __aenter__(self) -> "Reports":
        async def moved(message) -> None:
            self.moved.append(decode(message.data, KvMoved))

        async def held(message) -> None:
            self.held.append(decode(message.data, KvHeld))

        self._nc = await nats.connect(self._url)
        await self._nc.subscribe(kv_moved_subject(self._namespace, "*"), cb=moved)
        await self._nc.subscribe(kv_held_subject(self._namespace, "*"), cb=held)
        await settled(self._nc)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._nc.close()

    async def of(self, request_id: str, kind: str) -> list:
        for _ in range(100):
            if found := [r for r in getattr(self, kind) if r.request_id == request_id]:
                return found
            await asyncio.sleep(0.05)
        return []


def _question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_one_turn_is_one_span_with_its_facts(engines: Pair, client: Client, sink: OtlpSink) -> None:
    async with Reports(engines) as reports:
        turn = await client.turn(_question("Tell me of the river that flows through Paris. " * 12))
        [moved] = await reports.of(turn.request_id, "moved")
    trace_id, parent_id = turn.traceparent.split("-")[1:3]
    await asyncio.to_thread(sink.wait_for, SPAN_KV_TRANSFER, 1)
    [span] = [s for s in sink.spans(SPAN_KV_TRANSFER) if s.trace_id == trace_id]
    blocks = -(-turn.usage["prompt_tokens"] // engines.d.block_size_tokens)
    assert span.parent_id == parent_id
    assert span.status == 0
    expected = {
        "kv.direction": "p-d",
        "kv.blocks": blocks,
        "kv.cached_blocks": 0,
        "kv.bytes": blocks * engines.d.block_size_tokens * engines.d.kv_bytes_per_token,
        "kv.source.engine_id": engines.p.engine_id,
        "kv.destination.engine_id": engines.d.engine_id,
        "kv.source.worker_id": engines.p.worker_id,
        "kv.destination.worker_id": engines.d.worker_id,
        "kv.tp_rank": 0,
        "kv.backend": "UCX",
        "ppd.request_id": turn.request_id,
    }
    assert {key: span.attributes[key] for key in expected} == expected
    assert span.attributes["kv.transfer_s"] > 0
    assert span.attributes["kv.gb_per_s"] > 0
    assert (moved.bytes, moved.blocks, moved.direction) == (expected["kv.bytes"], blocks, "p-d")
    assert moved.trace_id == trace_id
    assert moved.transfer_s == span.attributes["kv.transfer_s"]


@pytest.mark.slow
async def test_spans_and_their_bytes_equal_what_vllm_counted(
    engines: Pair, client: Client, sink: OtlpSink
) -> None:
    before = len(sink.spans(SPAN_KV_TRANSFER))
    count, size = "vllm:nixl_bytes_transferred_count", "vllm:nixl_bytes_transferred_sum"
    start = metric(engines.d.url, count), metric(engines.d.url, size)
    gate = asyncio.Semaphore(6)

    async def chat(number: int) -> list[str]:
        messages = _question(
            f"Chat {number}. " + f"Say a number that is greater than {number}. " * (4 + number % 7)
        )
        seen = []
        for _ in range(3):
            async with gate:
                turn = await client.turn(messages, max_tokens=8)
            seen.append(turn.traceparent.split("-")[1])
            messages = [
                *messages,
                {"role": "assistant", "content": turn.text},
                *_question("And another one?"),
            ]
        return seen

    traces = [t for chat_traces in await asyncio.gather(*(chat(i) for i in range(70))) for t in chat_traces]
    moved = metric(engines.d.url, count) - start[0], metric(engines.d.url, size) - start[1]
    await asyncio.to_thread(sink.wait_for, SPAN_KV_TRANSFER, before + int(moved[0]))
    spans = sink.spans(SPAN_KV_TRANSFER)[before:]
    assert len(traces) == 210
    assert (len(spans), sum(s.attributes["kv.bytes"] for s in spans)) == moved
    assert {s.trace_id for s in spans} <= set(traces)
    assert all(s.parent_id for s in spans)
    assert all(s.status == 0 for s in spans)


async def test_kv_is_held_only_when_asked_and_pulled_back(engines: Pair, client: Client) -> None:
    messages = _question("Count the planets of the solar system and say something of each of them.")
    plain = await client.turn(messages)
    assert plain.held is None
    async with Reports(engines) as reports:
        first = await client.turn(messages, max_tokens=200, hold=True)
        [held] = await reports.of(first.request_id, "held")
        assert first.held == held.params
        assert held.tokens == first.usage["prompt_tokens"] + first.usage["completion_tokens"] - 1
        more = [*messages, {"role": "assistant", "content": first.text}, *_question("Which is the largest?")]
        second = await client.turn(more, pull_back=dict(held.params))
        moved = await reports.of(second.request_id, "moved")
    [back] = [m for m in moved if m.direction == "d-p"]
    assert (back.worker_id, back.source_worker_id) == (engines.p.worker_id, engines.d.worker_id)
    assert back.bytes > 0
    cached = second.prefill_usage["prompt_tokens_details"]["cached_tokens"]
    # An answer that was cut off may end in tokens that its text does not give again: a block at most.
    assert cached > held.tokens - 2 * engines.p.block_size_tokens
