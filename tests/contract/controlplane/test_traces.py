"""What a collector gets of turns: their spans, what they can be searched by, how they hang together."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from ppd.core.names import SPAN_DECODE, SPAN_KV_TRANSFER, SPAN_ROUTE, Role
from ppd.runtime import otlp, tracing
from tests.contract.controlplane.conftest import Cluster, Stack, until
from tests.support.otlp import ERROR, OtlpSink, SeenSpan
from tests.unit.controlplane.conftest import break_the_first
from tests.unit.controlplane.fakes import Fault
from workers.connector.spans import Puller, emit_span
from workers.connector.transfers import Origin, Transfer

pytestmark = pytest.mark.contract
TURN = "POST /v1/chat/completions"


@pytest.fixture
def sink() -> Iterator[OtlpSink]:
    made = OtlpSink()
    yield made
    made.close()


@pytest.fixture
def traced(sink: OtlpSink) -> Iterator[Callable[..., None]]:
    """Lets a frontend trace to the sink, at a ratio."""

    def trace(stack: Stack, ratio: float = 1.0) -> None:
        stack.frontend.lifecycle.tracer = tracing.setup(
            "ppd-frontend", otlp.OtlpExport(sink.endpoint, otlp.HTTP), sample_ratio=ratio
        )

    yield trace
    tracing.shutdown()


async def collected(sink: OtlpSink, name: str, count: int) -> list[SeenSpan]:
    return await asyncio.to_thread(sink.wait_for, name, count)


async def test_a_turn_can_be_searched_by_what_happened(
    cluster: Cluster, sink: OtlpSink, traced: Callable[..., None]
) -> None:
    stack = await cluster.frontend()
    traced(stack)
    async with await stack.chat("hi", stream=True, headers={"x-slo-class": "batch"}) as answer:
        trace_id = answer.headers["x-trace-id"]
        await answer.read()
    (span,) = await collected(sink, TURN, 1)
    assert (span.service, span.trace_id, span.events) == ("ppd-frontend", trace_id, ("first_token",))
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.output_tokens": 5,
        "ppd.path": "p-d",
        "ppd.reason": "first-turn",
        "ppd.turn": 1,
        "ppd.slo_class": "batch",
        "ppd.table_version": 0,
        "ppd.prefill_worker": "p0",
        "ppd.decode_worker": "d0",
        "ppd.outcome": "ok",
        "ppd.kv_bytes": 0,
    }
    assert {name: span.attributes[name] for name in expected} == expected
    assert span.attributes["ppd.session"] == span.attributes["gen_ai.conversation.id"] != ""
    assert span.attributes["gen_ai.usage.input_tokens"] > 0
    assert span.attributes["ppd.request_id"]
    assert span.attributes["ppd.ttft_ms"] >= span.attributes["ppd.path_ttft_ms"] > 0


async def test_the_turns_of_a_session_are_linked(
    cluster: Cluster, sink: OtlpSink, traced: Callable[..., None]
) -> None:
    """By whichever frontend each was served."""
    first, second = await cluster.frontend(), await cluster.frontend()
    traced(first)
    second.frontend.lifecycle.tracer = first.frontend.lifecycle.tracer
    _, _, answer = await first.ask("hi")
    said = answer["choices"][0]["message"]["content"]
    await until(lambda: first.frontend.sessions.newest(1)[0].trace != "")
    await second.ask("hi", said, "and then?")
    await first.ask("another conversation")
    turns = await collected(sink, TURN, 3)
    opening, following, other = sorted(turns, key=lambda span: span.start_ns)
    assert following.attributes["ppd.turn"] == 2
    assert following.links == (opening.trace_id,)
    assert following.trace_id != opening.trace_id
    assert opening.links == other.links == ()


async def test_a_client_that_hangs_up_is_an_event(
    cluster: Cluster, sink: OtlpSink, traced: Callable[..., None]
) -> None:
    stack = await cluster.frontend()
    traced(stack)
    cluster.engines["d0"].faults.append(Fault("stall"))
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.5):
            await stack.chat("hi", stream=True)
    (span,) = await collected(sink, TURN, 1)
    assert span.events == ("cancelled",)
    assert span.attributes["ppd.outcome"] == "cancelled"


async def test_a_retry_is_a_span_of_its_own_and_the_first_try_says_why(
    cluster: Cluster, sink: OtlpSink, traced: Callable[..., None]
) -> None:
    await cluster.register("d1", Role.DECODE)
    stack = await cluster.frontend()
    traced(stack)
    fails = cluster.engines["d0"].faults
    fails.append(Fault("close"))
    for i in range(10):
        if fails:
            await stack.ask(f"hi {i}")
    assert not fails, "none of ten conversations met d0"
    failed = [span for span in await collected(sink, SPAN_DECODE, 2) if span.status == ERROR]
    assert len(failed) == 1
    assert failed[0].message
    moved = [span for span in await collected(sink, TURN, 1) if span.attributes["ppd.retries"]]
    assert [span.attributes["ppd.reason"] for span in moved] == ["decode-failed"]


async def test_a_stream_that_moves_stays_one_trace(
    cluster: Cluster, sink: OtlpSink, traced: Callable[..., None]
) -> None:
    await cluster.register("d1", Role.DECODE)
    stack = await cluster.frontend()
    traced(stack)
    break_the_first(stack, "close", 3)
    async with await stack.chat("hi", stream=True) as answer:
        assert "[DONE]" in await answer.text()
    (turn,) = await collected(sink, TURN, 1)
    routes, decodes = await collected(sink, SPAN_ROUTE, 2), await collected(sink, SPAN_DECODE, 2)
    assert turn.attributes["ppd.migrations"] == 1
    assert turn.events == ("first_token",)
    assert {span.trace_id for span in (*routes, *decodes)} == {turn.trace_id}
    first, second = sorted(decodes, key=lambda span: span.start_ns)
    assert (first.status, second.status) == (ERROR, 0)
    assert {first.attributes["ppd.worker"], second.attributes["ppd.worker"]} == {"d0", "d1"}


async def test_the_engines_transfer_belongs_to_the_turn(
    cluster: Cluster, sink: OtlpSink, traced: Callable[..., None]
) -> None:
    """The traceparent that D was given is that of the span under which its transfer is shown."""
    stack = await cluster.frontend()
    traced(stack)
    await stack.ask("hi")
    given = cluster.engines["d0"].requests[0].body["kv_transfer_params"]
    tracer = stack.frontend.lifecycle.tracer
    assert tracer is not None
    transfer = Transfer(Origin.of(given, cached_blocks=0), "p0", blocks=3)
    transfer.ended_s = transfer.began_s + 0.01
    emit_span(tracer, Puller("d0-1", "d0", 0, "nixl"), transfer)
    (moved,) = await collected(sink, SPAN_KV_TRANSFER, 1)
    (decode,) = await collected(sink, SPAN_DECODE, 1)
    (turn,) = await collected(sink, TURN, 1)
    assert moved.parent_id == decode.span_id
    assert decode.parent_id == turn.span_id
    assert moved.trace_id == turn.trace_id
    assert moved.attributes["ppd.request_id"] == turn.attributes["ppd.request_id"]


async def test_the_ratio_is_of_traces_that_begin_here(
    cluster: Cluster, sink: OtlpSink, traced: Callable[..., None]
) -> None:
    stack = await cluster.frontend()
    traced(stack, ratio=0.0)
    async with await stack.chat("hi") as answer:
        assert len(answer.headers["x-trace-id"]) == 32
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    await stack.ask("hi", headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    spans = await collected(sink, TURN, 1)
    assert [span.trace_id for span in spans] == [trace_id]
