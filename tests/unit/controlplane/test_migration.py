"""D dies in the middle of a stream, and the stream goes on from another one."""

from typing import Any

import pytest

from ppd.core.names import Role
from tests.support.answers import TEXT, events, words
from tests.unit.controlplane.conftest import P_2D, QUICK, break_the_first, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", ["close", "stall", "truncate"])
@pytest.mark.parametrize("after", [1, 2, 3, 5])
async def test_no_token_is_lost_or_doubled(kind: str, after: int) -> None:
    async with running(P_2D, **QUICK) as stack:
        break_the_first(stack, kind, after)
        options = {"stream_options": {"include_usage": True}, "max_tokens": 20}
        async with await stack.chat("hi", stream=True, **options) as response:
            assert response.headers["x-ppd-reason"] == "first-turn"
            streamed = events(await response.text())
        assert words(streamed) == TEXT
        assert sum("role" in c["delta"] for e in streamed for c in e["choices"]) == 1
        assert [c["finish_reason"] for e in streamed for c in e["choices"] if c.get("finish_reason")] == [
            "stop"
        ]
        assert streamed[-1]["usage"]["completion_tokens"] == 5
        record = stack.frontend.ledger.recent[-1]
        assert (record.outcome, record.migrations, record.n_out_tokens) == ("ok", 1, 5)
        limits = [seen.body["max_tokens"] for name in ("d0", "d1") for seen in stack.engines[name].requests]
        assert sorted(limits) == [20 - max(0, after - 1), 20]
        assert (await stack.ask("hi", TEXT, "more"))[0] == "d-local"


async def test_a_chunk_may_hold_several_tokens() -> None:
    async with running(P_2D, **QUICK) as stack:
        for name in ("d0", "d1"):
            stack.engines[name].tokenized = 4
        break_the_first(stack, "close", 3)
        options = {"stream_options": {"include_usage": True}, "max_tokens": 20}
        async with await stack.chat("hi", stream=True, **options) as response:
            streamed = events(await response.text())
        assert words(streamed) == TEXT
        limits = [seen.body["max_tokens"] for name in ("d0", "d1") for seen in stack.engines[name].requests]
        assert sorted(limits) == [16, 20]
        assert streamed[-1]["usage"]["completion_tokens"] == 4 + 3


async def test_a_migrated_turn_runs_p_again_and_never_reuses_parameters() -> None:
    async with running(P_2D, **QUICK) as stack:
        break_the_first(stack, "close", 3)
        async with await stack.chat("hi", stream=True) as response:
            assert words(events(await response.text())) == TEXT
        used = [
            seen.body["kv_transfer_params"]["remote_request_id"]
            for name in ("d0", "d1")
            for seen in stack.engines[name].requests
        ]
        assert len(set(used)) == 2
        assert stack.engines["p0"].requests[-1].body["messages"][-1] == {
            "role": "assistant",
            "content": "Paris",
        }


async def test_a_stream_that_lacked_only_its_end_is_ended() -> None:
    async with running(P_2D, **QUICK) as stack:
        break_the_first(stack, "close", 6)
        async with await stack.chat("hi", stream=True) as response:
            assert words(events(await response.text())) == TEXT
        assert sum(len(stack.engines[name].requests) for name in ("d0", "d1")) == 1


async def test_completions_move_too() -> None:
    async with running(P_2D, **QUICK) as stack:
        break_the_first(stack, "close", 2)
        body = {"model": "m", "prompt": "go on:|", "stream": True}
        async with stack.http.post(f"{stack.url}/v1/completions", json=body) as response:
            text = "".join(event["choices"][0]["text"] for event in events(await response.text()))
        assert text == TEXT


async def test_a_replica_can_go_on() -> None:
    async with running({"p0": Role.PREFILL, "d0": Role.DECODE, "r0": Role.REPLICA}, **QUICK) as stack:
        for name, other in (("d0", "r0"), ("r0", "d0")):
            stack.engines[name].faults.append(Fault("close", after=3))
            stack.engines[name].on_request = stack.engines[other].faults.clear
        async with await stack.chat("hi", stream=True) as response:
            assert words(events(await response.text())) == TEXT


@pytest.mark.parametrize(
    "odd",
    [
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"structured_outputs": {"regex": "x"}},
    ],
)
async def test_what_cannot_move_ends_with_an_error_event(odd: dict[str, Any]) -> None:
    async with running(P_2D, **QUICK) as stack:
        break_the_first(stack, "close", 3)
        async with await stack.chat("hi", stream=True, **odd) as response:
            text = await response.text()
        assert "[DONE]" not in text
        assert '"error"' in text.split("\n\n")[-2]


async def test_a_stream_that_breaks_everywhere_ends_with_an_error_event() -> None:
    async with running(P_2D, **QUICK) as stack:
        for name in ("d0", "d1"):
            stack.engines[name].faults.append(Fault("close", after=3))
        await stack.engines["p0"].stop()
        async with await stack.chat("hi", stream=True) as response:
            text = await response.text()
        assert "[DONE]" not in text
        assert '"error"' in text
