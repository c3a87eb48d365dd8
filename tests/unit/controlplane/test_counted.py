"""What is counted and recorded of a turn is what was seen of it; what was not seen is absent."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import UNSET
from prometheus_client import REGISTRY

from controlplane.telemetry import metrics
from ppd.core import seeds
from ppd.core.learning.learner import Learner
from ppd.core.learning.samples import Unfit
from ppd.core.names import Outcome, Role
from ppd.core.placement import parse_placement
from ppd.core.records import TurnRecord, decode, encode
from ppd.core.table import Table
from tests.support.answers import TEXT
from tests.unit.controlplane.conftest import P_D, Stack, running, trace
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

TIMES = ("ttft_ms", "path_ttft_ms", "tpot_ms")


class Counts:
    """What samples of /metrics grew by since this was made."""

    def __init__(self) -> None:
        self._before: dict[Any, float] = self._all()

    def _all(self) -> dict[Any, float]:
        metrics.exposition()
        return {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for metric in REGISTRY.collect()
            for sample in metric.samples
        }

    def since(self, name: str, **labels: str) -> float:
        """Summed over the labels that are not named."""
        now, wanted = self._all(), set(labels.items())
        return sum(
            value - self._before.get(key, 0.0)
            for key, value in now.items()
            if key[0] == name and wanted <= set(key[1:])
        )


def learner() -> Learner:
    return Learner(Table(seeds.nearest(parse_placement("1P1D"), "m")))


def last(stack: Stack) -> TurnRecord:
    """As it is on the wire."""
    return decode(encode(stack.frontend.ledger.recent[-1]), TurnRecord)


async def streamed(stack: Stack, *messages: str, **fields: Any) -> str:
    async with await stack.chat(*messages, stream=True, **fields) as response:
        return await response.text()


async def ended(stack: Stack, turns: int) -> None:
    """Until so many turns were closed."""
    async with asyncio.timeout(20):
        while len(stack.frontend.ledger.recent) < turns:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# --- answers that are not streamed ---


async def test_an_unstreamed_answer_has_no_ttft_and_no_tpot(stack: Stack) -> None:
    exporter, counts = trace(stack), Counts()
    await stack.ask("hi")
    await stack.ask("hi", TEXT, "more")
    record = last(stack)
    assert [getattr(record, name) for name in TIMES] == [UNSET] * 3
    assert not set(TIMES) & set(json.loads(encode(record)))
    assert (record.streamed, record.n_out_tokens) == (False, 5)
    assert record.e2e_ms > 0
    for name in ("ppd_ttft_seconds", "ppd_path_ttft_seconds", "ppd_tpot_seconds"):
        assert counts.since(f"{name}_count") == 0
    assert counts.since("ppd_e2e_seconds_count") == 2
    assert counts.since("ppd_tokens_total", kind="output") == 10
    for span in exporter.get_finished_spans():
        assert not {"ppd.ttft_ms", "ppd.path_ttft_ms", "ppd.tpot_ms"} & set(span.attributes or {})
        assert "first_token" not in {event.name for event in span.events}
    assert learner().observe(record, 1.0) is Unfit.NO_TIMES


async def test_only_an_unstreamed_answer_of_one_token_shows_its_ttft(stack: Stack) -> None:
    stack.engines["d0"].words = ["yes"]
    await stack.ask("hi")
    record = last(stack)
    assert record.ttft_ms is not UNSET
    assert 0 < record.ttft_ms <= record.e2e_ms
    assert record.tpot_ms is UNSET


async def test_a_stream_has_all_its_figures(stack: Stack) -> None:
    counts = Counts()
    await streamed(stack, "hi")
    record = last(stack)
    assert all(getattr(record, name) is not UNSET for name in TIMES)
    for name in ("ppd_ttft_seconds", "ppd_path_ttft_seconds", "ppd_tpot_seconds"):
        assert counts.since(f"{name}_count", path="p-d") == 1


async def test_a_client_that_holds_its_stream_up_tells_no_tpot(stack: Stack) -> None:
    stack.engines["d0"].words = ["x" * 200_000] * 100
    async with await stack.chat("hi", stream=True) as response:
        await response.content.readany()
        async with asyncio.timeout(20):
            while len(stack.engines["d0"].requests) < 1 or not _lags(stack):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await response.read()
    record = last(stack)
    assert (record.outcome, record.n_out_tokens) == (Outcome.OK, 100)
    assert record.ttft_ms is not UNSET
    assert record.tpot_ms is UNSET


def _lags(stack: Stack) -> bool:
    return any(each._flow.write_paused for each in stack.server.connections)


# --- the frontend's own queue ---


async def test_the_queue_is_in_the_clients_ttft_and_not_in_the_paths() -> None:
    async with running(P_D, max_running=1) as stack:
        stack.engines["d0"].faults.append(Fault("stall", after=2))
        async with await stack.chat("one", stream=True) as first:
            second = asyncio.create_task(streamed(stack, "two"))
            while not stack.frontend.lifecycle._gate.queued:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            first.close()
        await second
        record = last(stack)
        assert record.queue_ms >= 50
        assert record.ttft_ms is not UNSET
        assert record.path_ttft_ms is not UNSET
        assert record.ttft_ms - record.path_ttft_ms >= record.queue_ms


async def test_who_leaves_the_queue_without_an_engine_took_no_path() -> None:
    async with running({"d0": Role.DECODE}, max_running=1, max_queued=2, queue_s=2) as stack:
        stack.engines["d0"].faults.append(Fault("stall"))
        first = asyncio.create_task(stack.chat("first"))
        while not stack.engines["d0"].requests:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        counts = Counts()
        gone = asyncio.create_task(stack.chat("hangs up"))
        late = asyncio.create_task(stack.chat("waits in vain"))
        while stack.frontend.lifecycle._gate.queued < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        async with await stack.chat("finds it full") as response:
            assert response.status == 429
        gone.cancel()
        assert (await late).status == 429
        async with asyncio.timeout(20):
            while counts.since("ppd_queue_seconds_count", path="none") < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert counts.since("ppd_queue_seconds_sum", path="none") >= 2
        assert counts.since("ppd_requests_total", path="none", status="429") == 2
        assert counts.since("ppd_requests_total", path="none", status="499") == 1
        assert counts.since("ppd_cancelled_total", stage="queued") == 1
        assert counts.since("ppd_requests_total") == 3
        assert counts.since("ppd_e2e_seconds_count") == counts.since("ppd_ttft_seconds_count") == 0
        assert not stack.frontend.ledger.recent
        first.cancel()


# --- answers that were cut off ---


async def _cut_off(stack: Stack, chunks: int, **fields: Any) -> int:
    """Hang up after so many chunks with text; how many tokens they held."""
    stack.engines["d0"].words = ["word "] * 200
    stack.engines["d0"].chunk_gap_s = 0.005
    turns, seen = len(stack.frontend.ledger.recent), 0
    async with await stack.chat("hi", stream=True, **fields) as response:
        async for line in response.content:
            seen += b"word" in line
            if seen == chunks:
                break
        response.close()
    await ended(stack, turns + 1)
    return seen


async def test_a_stream_that_the_client_ended_counts_what_was_made(stack: Stack) -> None:
    exporter, counts = trace(stack), Counts()
    seen = await _cut_off(stack, 7)
    record = last(stack)
    assert (record.outcome, record.status, record.error_type) == (
        Outcome.CANCELLED,
        499,
        "client_disconnected",
    )
    made = record.n_out_tokens
    assert made is not UNSET
    assert seen <= made < 200
    assert record.n_out_at_least
    prompt = stack.engines["p0"]._usage(stack.engines["p0"].requests[0], 1)["prompt_tokens"]
    assert (record.n_prompt_tokens, record.n_prompt_estimated) == (prompt, False)
    assert counts.since("ppd_tokens_total", kind="output") == made
    assert counts.since("ppd_tokens_total", kind="prompt") == prompt
    assert counts.since("ppd_cancelled_total", stage="streaming") == 1
    [span] = [each for each in exporter.get_finished_spans() if each.parent is None]
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.usage.output_tokens"] == made
    assert attributes["gen_ai.usage.input_tokens"] == prompt
    assert attributes["ppd.output_tokens_at_least"] is True
    assert record.tpot_ms is UNSET
    assert learner().observe(record, 1.0) is Unfit.FAILED


async def test_d_locals_prompt_is_then_estimated(stack: Stack) -> None:
    stack.engines["d0"].words = [TEXT]
    await stack.ask("hi")
    stack.engines["d0"].words = ["word "] * 200
    stack.engines["d0"].chunk_gap_s = 0.005
    async with await stack.chat("hi", TEXT, "more", stream=True) as response:
        await response.content.readline()
        response.close()
    await ended(stack, 2)
    record = last(stack)
    assert record.path == "d-local"
    assert record.n_prompt_estimated
    assert record.n_prompt_tokens == record.n_ctx_tokens + record.n_in_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"return_token_ids": True},
        {"logprobs": True},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_chunks_that_say_their_tokens_are_counted_exactly(stack: Stack, fields: dict[str, Any]) -> None:
    stack.engines["d0"].per_chunk = 3
    seen = await _cut_off(stack, 5, **fields)
    record = last(stack)
    assert not record.n_out_at_least
    assert record.n_out_tokens is not UNSET
    assert record.n_out_tokens >= 3 * seen
    assert record.n_out_tokens % 3 == 0


async def test_reasoning_and_tool_calls_are_tokens_too(stack: Stack) -> None:
    stack.engines["d0"].thoughts = ["hm "] * 9
    assert await _cut_off(stack, 1) == 1
    assert (last(stack).n_out_tokens or 0) >= 10


async def test_an_engines_end_in_the_middle_counts_what_was_sent(stack: Stack) -> None:
    stack.engines["d0"].faults.append(Fault("close", after=4))
    text = await streamed(stack, "hi", tools=[{"type": "function", "function": {"name": "f"}}])
    assert '"error"' in text
    record = last(stack)
    assert (record.outcome, record.status) == (Outcome.ERROR, 502)
    assert (record.n_out_tokens, record.n_out_at_least) == (3, True)
    assert learner().observe(record, 1.0) is Unfit.FAILED


# --- a forced shutdown ---


async def test_turns_that_a_shutdown_cuts_off_are_errors_and_their_clients_hear_so() -> None:
    async with running(P_D, max_running=3) as stack:
        d0 = stack.engines["d0"]
        d0.words, d0.chunk_gap_s = ["word "] * 10_000, 0.005
        counts = Counts()
        streams = [await stack.chat(f"chat {i}", stream=True) for i in range(2)]
        for response in streams:
            await response.content.readline()
        d0.faults.append(Fault("stall"))
        silent = asyncio.create_task(stack.chat("never answered"))
        while len(d0.requests) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        queued = asyncio.create_task(stack.chat("in the queue"))
        while not stack.frontend.lifecycle._gate.queued:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        stack.server.stop()
        stack.server.stop()
        for response in streams:
            text = (await response.read()).decode()  # raises where the message has no clean end
            event = json.loads(text.rstrip().rpartition("data: ")[2])
            assert event["error"]["type"] == "service_unavailable_error"
            assert "[DONE]" not in text
        for task in (silent, queued):
            response = await task
            assert response.status == 503
            assert "retry-after" in response.headers
            assert (await response.json())["error"]["type"] == "service_unavailable_error"
        records = list(stack.frontend.ledger.recent)
        assert len(records) == 3
        for record in records:
            assert (record.outcome, record.status, record.error_type) == (Outcome.ERROR, 503, "shutdown")
            assert learner().observe(record, 1.0) is Unfit.FAILED
        made = sorted(record.n_out_tokens or 0 for record in records)
        assert made[0] == 0 < made[1]
        assert counts.since("ppd_requests_total", status="503") == 4
        assert counts.since("ppd_requests_total", status="200") == 0
