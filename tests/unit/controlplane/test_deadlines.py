"""Deadlines spare engines that work: what is late is not what has failed."""

import asyncio
from typing import Any

import pytest

from ppd.core.names import Role
from ppd.core.records import WorkerLoad
from tests.support.answers import TEXT, events, text_of, words
from tests.unit.controlplane.conftest import P_2D, P_D, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit

SHORT: dict[str, Any] = {"prefill_s": 0.2, "first_byte_s": 0.2, "idle_s": 0.2, "connect_s": 5.0}
TWO_D = {"d0": Role.DECODE, "d1": Role.DECODE}


def well(stack: Stack, *names: str, **fields: Any) -> None:
    """The agents of these engines report, and say that they work."""
    now_s = asyncio.get_running_loop().time()
    for name in names:
        stack.frontend.cluster.report(WorkerLoad(worker_id=f"{name}-1", running=1, **fields), now_s)


def asked(stack: Stack) -> int:
    return sum(len(engine.requests) for engine in stack.engines.values())


async def test_an_answer_that_is_not_streamed_may_take_longer_than_a_first_byte() -> None:
    async with running(TWO_D, **SHORT) as stack:
        for engine in stack.engines.values():
            engine.faults.append(Fault("slow"))
        assert text_of((await stack.ask("hi"))[2]) == TEXT
        assert asked(stack) == 1


@pytest.mark.parametrize("after", [0, 2])
async def test_a_stream_may_be_silent_while_its_engine_makes_steps(after: int) -> None:
    """Buffered tool arguments, long reasoning: no byte, and no failure."""
    async with running(TWO_D, **SHORT) as stack:
        for name, engine in stack.engines.items():
            engine.faults.append(Fault("slow", after=after))
            well(stack, name)
        async with await stack.chat("hi", stream=True) as response:
            assert words(events(await response.text())) == TEXT
        assert asked(stack) == 1


async def test_a_p_that_works_off_its_queue_has_not_failed() -> None:
    async with running(P_D, **SHORT) as stack:
        stack.engines["p0"].faults.append(Fault("slow"))
        well(stack, "p0", "d0")
        assert (await stack.ask("hi"))[:2] == ("p-d", "first-turn")


async def test_a_turn_leaves_a_long_queue_where_d_is_sooner_and_p_is_not_blamed() -> None:
    async with running(P_D, **SHORT) as stack:
        stack.engines["p0"].faults.append(Fault("slow"))
        stack.engines["p0"].slow_s = 60.0
        well(stack, "p0", queued_prefill_tokens=1_000_000, prefill_speed_tokens_per_s=1000.0)
        well(stack, "d0", prefill_speed_tokens_per_s=1000.0)
        async with asyncio.timeout(20):
            assert (await stack.ask("hi"))[:2] == ("d-local", "prefill-failed")
        worker = stack.frontend.cluster.workers["p0-1"]
        assert not worker.resting(asyncio.get_running_loop().time())


async def test_failures_of_one_moment_lengthen_a_rest_once() -> None:
    async with running(P_D) as stack:
        worker = stack.frontend.cluster.workers["d0-1"]
        for _ in range(20):
            worker.failed(100.0)
        assert worker.resting(100.4)
        assert not worker.resting(100.6)


async def test_a_silent_engine_is_asked_and_its_stream_moves_without_any_report() -> None:
    """NATS is away and the engine hangs: its own silence is evidence enough."""
    async with running(P_2D, suspect_s=1.0, idle_s=60.0) as stack:
        for name in ("d0", "d1"):
            stack.engines[name].faults.append(Fault("stall", after=2))
        async with asyncio.timeout(20), await stack.chat("hi", stream=True) as response:
            text = asyncio.create_task(response.text())
            first = next(name for name in ("d0", "d1") if stack.engines[name].requests)
            stack.engines["d1" if first == "d0" else "d0"].faults.clear()
            assert words(events(await text)) == TEXT
        assert stack.engines[first].asked


async def test_a_fifth_engine_may_finish_what_four_died_of() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(5)}, connect_s=5.0) as stack:
        crashes = iter(range(2, 6))

        def crash_once(engine: Any) -> None:
            after = next(crashes, None)
            if after is not None:
                engine.faults.append(Fault("close", after=2))

        for engine in stack.engines.values():
            engine.on_request = lambda engine=engine: crash_once(engine)
            engine.words = ["a", "b", "c", "d", "e", "f", "g"]
        async with await stack.chat("hi", stream=True) as response:
            assert words(events(await response.text())) == "abcdefg"
        assert asked(stack) == 5


async def test_a_request_that_kills_engines_stops_after_three() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(6)}, connect_s=5.0) as stack:
        for engine in stack.engines.values():
            engine.faults.append(Fault("close"))
        async with await stack.chat("hi") as response:
            assert response.status == 502
        assert asked(stack) == 3


@pytest.mark.parametrize("fault", [Fault("close"), Fault("status", status=500)])
async def test_a_request_that_kills_every_engine_it_meets_meets_three(fault: Fault) -> None:
    """P's count as well."""
    roles = {f"p{i}": Role.PREFILL for i in range(4)} | {f"d{i}": Role.DECODE for i in range(4)}
    async with running(roles, connect_s=5.0) as stack:
        for engine in stack.engines.values():
            engine.faults.append(fault)
        async with await stack.chat("hi") as response:
            assert response.status == 502
        assert asked(stack) == 3


async def test_a_stream_that_gets_no_further_stops_after_three_more_engines() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(8)}, connect_s=5.0) as stack:
        for engine in stack.engines.values():
            engine.faults.append(Fault("close", after=2))
            engine.words = ["a", "b", "c"]
            engine.on_request = lambda engine=engine: die_at_once(engine)

        def die_at_once(engine: Any) -> None:
            if asked(stack) > 1:
                engine.faults.clear()
                engine.faults.append(Fault("close", after=1))

        async with await stack.chat("hi", stream=True) as response:
            text = await response.text()
        assert "[DONE]" not in text
        assert asked(stack) == 4


async def test_a_stream_whose_kv_does_not_come_leaves_a_d_that_works() -> None:
    """D reports its transfers and has room, and has not reported this one: it is not D's queue."""
    async with running(P_2D, **SHORT) as stack:
        workers = stack.frontend.cluster.workers
        for name in ("d0", "d1"):
            stack.engines[name].faults.append(Fault("slow"))
            stack.engines[name].slow_s = 10.0
            workers[f"{name}-1"].reports_kv = True
            well(stack, name)
        async with asyncio.timeout(20), await stack.chat("hi", stream=True) as response:
            assert words(events(await response.text())) == TEXT  # of P, the last that is left
        assert [len(stack.engines[name].requests) for name in ("d0", "d1")] == [1, 1]
        assert not any(each.resting(asyncio.get_running_loop().time()) for each in workers.values())


async def test_what_was_sent_is_counted_by_an_engine_that_answers_and_never_guessed() -> None:
    async with running({f"d{i}": Role.DECODE for i in range(4)}, connect_s=5.0) as stack:
        engines = list(stack.engines.values())
        for engine in engines:
            engine.tokenized = 7  # tokens in two chunks
            engine.on_request = lambda engine=engine: begun(engine)

        def begun(first: Any) -> None:
            if asked(stack) == 1:
                first.faults.append(Fault("close", after=3))
                others = [engine for engine in engines if engine is not first]
                others[0].deaf = others[1].deaf = True

        async with await stack.chat("hi", stream=True, max_tokens=20) as response:
            assert words(events(await response.text())) == TEXT
        last = next(e for e in engines if e.requests and e.requests[-1].body.get("continue_final_message"))
        assert last.requests[-1].body["max_tokens"] == 13
