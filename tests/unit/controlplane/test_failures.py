"""What goes wrong on the engines, and what a client sees of it."""

import asyncio

import pytest

from ppd.core.names import Role
from tests.support.answers import TEXT, events, text_of, words
from tests.support.waiting import until
from tests.unit.controlplane.conftest import P_2D, P_D, QUICK, TWO_P_D, Stack, break_the_first, running
from tests.unit.controlplane.fakes import FakeEngine, Fault

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", ["status", "stall", "close"])
async def test_p_fails_and_another_p_takes_over(kind: str) -> None:
    async with running(TWO_P_D, **QUICK) as stack:
        break_the_first(stack, kind, pool=("p0", "p1"))
        async with await stack.chat("hi") as response:
            assert response.headers["x-ppd-route"] == "p-d"
            assert response.headers["x-ppd-reason"] == "first-turn"
            second = response.headers["x-ppd-prefill"]
            assert text_of(await response.json()) == TEXT
        assert [len(stack.engines[name].requests) for name in ("p0", "p1")] == [1, 1]
        assert stack.engines[second].requests[0].finished
        [asked] = stack.engines["d0"].requests
        assert asked.body["kv_transfer_params"]["remote_engine_id"] == second
        assert stack.frontend.ledger.recent[-1].retries == 1


@pytest.mark.parametrize("kind", ["status", "stall", "close"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_only_p_fails_and_d_does_it_all(kind: str, stream: bool) -> None:
    async with running(P_D, **QUICK) as stack:
        stack.engines["p0"].faults.append(Fault(kind))
        async with await stack.chat("hi", stream=stream) as response:
            assert response.headers["x-ppd-route"] == "d-local"
            assert response.headers["x-ppd-reason"] == "prefill-failed"
            assert "x-ppd-prefill" not in response.headers
            text = words(events(await response.text())) if stream else text_of(await response.json())
        assert text == TEXT
        assert "kv_transfer_params" not in stack.engines["d0"].requests[0].body


async def test_a_p_that_is_not_there_costs_no_request() -> None:
    async with running(P_D, **QUICK) as stack:
        await stack.engines["p0"].stop()
        assert (await stack.ask("hi"))[:2] == ("d-local", "prefill-failed")


@pytest.mark.parametrize("kind", ["status", "stall", "close", "empty"])
@pytest.mark.parametrize("stream", [False, True])
async def test_d_fails_before_the_first_byte_and_another_d_takes_over(kind: str, stream: bool) -> None:
    async with running(P_2D, **{**QUICK, "prefill_s": 20}) as stack:
        break_the_first(stack, kind)
        async with await stack.chat("hi", stream=stream) as response:
            assert response.status == 200
            assert response.headers["x-ppd-route"] == "p-d"
            second = response.headers["x-ppd-decode"]
            text = words(events(await response.text())) if stream else text_of(await response.json())
        assert text == TEXT
        assert [len(stack.engines[name].requests) for name in ("d0", "d1")] == [1, 1]
        assert stack.engines[second].requests[0].finished


@pytest.mark.parametrize("kind", ["status", "stall", "close", "empty"])
@pytest.mark.parametrize("stream", [False, True])
async def test_where_each_d_fails_before_the_first_byte_p_does_it_all(kind: str, stream: bool) -> None:
    async with running(P_2D, **QUICK) as stack:
        stack.engines["d0"].faults.append(Fault(kind))
        stack.engines["d1"].faults.append(Fault(kind))
        async with await stack.chat("hi", stream=stream) as response:
            assert response.status == 200
            assert response.headers["x-ppd-route"] == "replica"
            assert response.headers["x-ppd-decode"] == "p0"
            text = words(events(await response.text())) if stream else text_of(await response.json())
        assert text == TEXT


@pytest.mark.parametrize("kind", ["status", "stall", "close", "empty"])
@pytest.mark.parametrize("stream", [False, True])
async def test_where_all_engines_fail_it_is_502_and_the_next_turn_is_served(kind: str, stream: bool) -> None:
    async with running({"d0": Role.DECODE, "d1": Role.DECODE}, **QUICK) as stack:
        for name in ("d0", "d1"):
            stack.engines[name].faults.append(Fault(kind))
        async with await stack.chat("hi", stream=stream) as first:
            await first.read()
            assert first.status == 502
        async with await stack.chat("hi", stream=stream) as second:
            assert second.status == 200


@pytest.mark.parametrize(
    ("kind", "stream"),
    [(kind, stream) for kind in ("status", "stall", "close", "truncate") for stream in (False, True)]
    + [("error-event", True)],
)
async def test_the_next_d_never_gets_used_parameters(kind: str, stream: bool) -> None:
    # P is waited for: where it is late, D gets no parameters at all.
    async with running(P_2D, **{**QUICK, "prefill_s": 20}) as stack:
        break_the_first(stack, kind)
        async with await stack.chat("hi", stream=stream) as response:
            assert response.status == 200
            assert response.headers["x-ppd-route"] == "p-d"
            assert response.headers["x-ppd-reason"] == "decode-failed"
            text = words(events(await response.text())) if stream else text_of(await response.json())
        assert text == TEXT
        assert stack.frontend.gate.running == 0
        used = [
            seen.body["kv_transfer_params"]["remote_request_id"]
            for name in ("d0", "d1")
            for seen in stack.engines[name].requests
        ]
        assert len(used) == 2
        assert len(set(used)) == 2
        assert stack.frontend.ledger.recent[-1].retries == 1


async def test_the_only_engine_dies_in_the_middle_of_a_stream_without_a_fake_end() -> None:
    async with running({"d0": Role.DECODE}, **QUICK) as stack:
        stack.engines["d0"].faults.append(Fault("close", after=3))
        async with await stack.chat("hi", stream=True) as response:
            assert response.status == 200
            text = await response.text()
        assert "[DONE]" not in text
        assert '"finish_reason":"stop"' not in text
        assert '"error"' in text.split("\n\n")[-2]
        assert stack.frontend.ledger.recent[-1].outcome == "error"


@pytest.mark.parametrize("kind", ["stall", "truncate"])
async def test_a_stream_that_stalls_or_ends_early_is_an_error(kind: str) -> None:
    async with running({"d0": Role.DECODE}, **QUICK) as stack:
        stack.engines["d0"].faults.append(Fault(kind, after=3))
        async with await stack.chat("hi", stream=True) as response:
            text = await response.text()
        assert "[DONE]" not in text
        assert '"error"' in text


async def test_a_refusal_of_the_request_passes_through_in_openais_shape(stack: Stack) -> None:
    body = b'{"error":{"message":"maximum context length is 4096","type":"BadRequestError","code":400}}'
    stack.engines["p0"].faults.append(Fault("status", status=400, body=body))
    async with await stack.chat("hi") as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "context_length_exceeded"
    assert not stack.engines["d0"].requests


async def test_a_p_that_gives_no_parameters_is_counted_and_d_computes(stack: Stack) -> None:
    stack.engines["p0"].faults.append(Fault("no-kv"))
    route, _, answer = await stack.ask("hi")
    assert route == "p-d"
    assert text_of(answer) == TEXT
    assert "kv_transfer_params" not in stack.engines["d0"].requests[0].body


@pytest.mark.parametrize("stream", [False, True])
async def test_ps_one_token_that_ends_the_answer_is_the_answer(stack: Stack, stream: bool) -> None:
    stack.engines["p0"].faults.append(Fault("stop"))
    options = {"stream_options": {"include_usage": True}} if stream else {}
    async with await stack.chat("hi", stream=stream, **options) as response:
        assert response.headers["x-ppd-reason"] == "prefill-answered"
        if stream:
            streamed = events(await response.text())
            assert words(streamed) == "Par"
            assert [c["finish_reason"] for e in streamed for c in e["choices"] if c["finish_reason"]] == [
                "stop"
            ]
            assert streamed[-1]["usage"]["completion_tokens"] == 5 - 4
        else:
            assert text_of(await response.json()) == "Par"
    assert not stack.engines["d0"].requests


async def test_no_prefill_worker_leaves_it_to_d() -> None:
    async with running({"d0": Role.DECODE}) as stack:
        assert (await stack.ask("hi"))[:2] == ("d-local", "no-prefill")


async def test_a_replica_alone_serves() -> None:
    async with running({"r0": Role.REPLICA}) as stack:
        assert (await stack.ask("hi"))[0] == "replica"
        assert (await stack.ask("hi", TEXT, "more"))[0] == "replica"


async def test_a_replica_is_the_fallback_of_an_empty_pool() -> None:
    async with running({"p0": Role.PREFILL, "r0": Role.REPLICA}) as stack:
        assert (await stack.ask("hi"))[0] == "replica"


async def test_a_replica_takes_over_from_a_dead_d() -> None:
    async with running({**P_D, "r0": Role.REPLICA}, **QUICK) as stack:
        await stack.engines["d0"].stop()
        for i in range(3):
            route, _, answer = await stack.ask(f"hi {i}")
            assert text_of(answer) == TEXT
            assert route == "replica"


async def test_p_is_the_last_resort_of_an_empty_decode_pool() -> None:
    async with running({"p0": Role.PREFILL}) as stack:
        route, reason, answer = await stack.ask("hi")
        assert (route, reason, text_of(answer)) == ("replica", "no-decode", TEXT)
        async with stack.http.get(stack.url + "/health") as response:
            health = await response.json()
        assert (health["status"], health["models"]["m"]["missing"]) == ("degraded", ["decode"])


async def test_no_engine_is_503() -> None:
    async with running({}) as stack:
        async with await stack.chat("hi") as response:
            assert response.status == 503
            assert response.headers["retry-after"]
        for path in ("/ready", "/health"):
            async with stack.http.get(stack.url + path) as response:
                assert response.status == 503
        async with stack.http.get(stack.url + "/v1/models") as response:
            assert (await response.json())["data"] == []


async def test_a_session_whose_d_is_gone_moves_at_once() -> None:
    async with running(P_2D) as stack:
        async with await stack.chat("hi") as response:
            home = response.headers["x-ppd-decode"]
        records = {
            worker.id: worker.record
            for worker in stack.frontend.cluster.workers.values()
            if worker.name != home
        }
        stack.frontend.fleet.update(records)
        assert (await stack.ask("hi", TEXT, "more"))[:2] == ("p-d", "session-moved")
        assert (await stack.ask("hi", TEXT, "more", TEXT, "x"))[0] == "d-local"


async def test_a_restarted_engine_on_the_same_port_is_another_worker(stack: Stack) -> None:
    await stack.ask("hi")
    workers = stack.frontend.cluster.workers
    fresh = workers["d0-1"].record.__class__(
        **{
            **{f: getattr(workers["d0-1"].record, f) for f in workers["d0-1"].record.__struct_fields__},
            "worker_id": "d0-2",
        }
    )
    stack.frontend.fleet.update({"p0-1": workers["p0-1"].record, "d0-2": fresh})
    assert (await stack.ask("hi", TEXT, "more"))[:2] == ("p-d", "session-moved")


async def hang_up(stack: Stack, engine: FakeEngine, n: int = 1) -> None:
    """Send a streamed chat, wait until `engine` has it, and drop the connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"bye"}]}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    await until(lambda: len(engine.requests) >= n)
    writer.close()


async def test_a_client_that_hangs_up_stops_p(stack: Stack) -> None:
    stack.engines["p0"].faults.append(Fault("stall"))
    await hang_up(stack, stack.engines["p0"])
    await until(lambda: stack.engines["p0"].requests[0].aborted)
    await until(lambda: stack.frontend.gate.running == 0)
    assert not stack.engines["d0"].requests
    assert stack.frontend.ledger.recent[-1].outcome == "cancelled"


@pytest.mark.parametrize("after", [0, 3])
async def test_a_client_that_hangs_up_stops_d(stack: Stack, after: int) -> None:
    stack.engines["d0"].faults.append(Fault("stall", after=after))
    await hang_up(stack, stack.engines["d0"])
    await until(lambda: stack.engines["d0"].requests[0].aborted)
    await until(lambda: stack.frontend.gate.running == 0)
    assert stack.frontend.ledger.recent[-1].outcome == "cancelled"
    for worker in stack.frontend.cluster.workers.values():
        assert (worker.running, worker.prefill_tokens) == (0, 0)


async def test_a_client_that_leaves_after_done_was_served(stack: Stack) -> None:
    stack.engines["d0"].late_end_s = 5
    async with await stack.chat("hi", stream=True) as response:
        data = b""
        while b"[DONE]" not in data:
            data += await response.content.readany()
        response.close()
    await until(lambda: stack.frontend.gate.running == 0)
    assert stack.frontend.ledger.recent[-1].outcome == "ok"
    assert (await stack.ask("hi", TEXT, "more"))[0] == "d-local"


async def test_blocks_of_a_d_that_was_never_asked_are_released_through_another() -> None:
    async with running(P_2D, **QUICK) as stack:
        await stack.ask("warm")
        await stack.engines["d0"].stop()
        for i in range(4):
            await stack.ask(f"hi {i}")
        d1 = stack.engines["d1"]
        await until(lambda: any(seen.body.get("model") == "released-before-decode" for seen in d1.requests))


async def test_a_failed_engine_rests_and_comes_back() -> None:
    async with running(P_2D, **QUICK) as stack:
        stack.engines["d0"].faults.append(Fault("status"))
        for i in range(4):
            await stack.ask(f"hi {i}")
        rested = len(stack.engines["d0"].requests)
        assert rested <= 2
        await asyncio.sleep(0.6)
        for i in range(4):
            await stack.ask(f"again {i}")
        assert len(stack.engines["d0"].requests) > rested


async def test_a_slow_reader_pauses_the_engine(stack: Stack) -> None:
    """The engine's socket fills up rather than this process's memory."""
    engine = stack.engines["d0"]
    engine.words = ["x" * 100_000] * 400
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port, limit=1024)
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"long"}]}'
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    pool = stack.frontend.cluster.workers["d0-1"].pool
    await until(lambda: any(connection._paused for connection in pool._all))
    assert sum(connection._buffered for connection in pool._all) < 2_000_000
    assert not engine.requests[0].finished
    writer.close()
    await until(lambda: stack.frontend.gate.running == 0)
