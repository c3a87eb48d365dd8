"""Internals by another way: what a client hides is dropped like what it says openly."""

import logging

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from controlplane.dialects.fields import MAX_MESSAGES
from controlplane.turn.tokens import TokenCounter
from ppd.core.identity import Message
from tests.unit.controlplane.conftest import Stack

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("value", [{"do_remote_prefill": True, "remote_host": "10.0.0.1"}, "x", ["x"], 1])
async def test_vllms_further_arguments_carry_no_internals(stack: Stack, value: object) -> None:
    """vLLM takes an entry of them for the field of that name."""
    further = {"mine": "v", "kv_transfer_params": value, "ec_transfer_params": value}
    await stack.ask("hi")
    assert (await stack.ask("hi", "Paris it is.", "more", vllm_xargs=further))[0] == "d-local"
    await stack.ask("hi", n=2, vllm_xargs=further)
    body = {"model": "m", "input": "x", "vllm_xargs": further}
    async with stack.http.post(stack.url + "/v1/responses", json=body) as response:
        assert response.status == 200
    for seen in stack.engines["d0"].requests[1:]:
        assert seen.body["vllm_xargs"] == {"mine": "v"}


async def test_they_are_an_object(stack: Stack) -> None:
    for value in ("x", 1, [], True):
        async with await stack.chat("hi", vllm_xargs=value) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "vllm_xargs"
    assert not stack.engines["p0"].requests
    await stack.ask("hi", vllm_xargs=None)


class _Slow:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.inner = Tokenizer(WordLevel({"x": 0}, "x"))
        self.chars = 0

    def encode(self, text: str, add_special_tokens: bool) -> object:
        self.chars += len(text)
        return self.inner.encode(text, add_special_tokens=add_special_tokens)


def test_many_messages_are_no_way_to_hold_up_others() -> None:
    counter, slow = TokenCounter(logging.getLogger()), _Slow()
    counter._tokenizers["m"] = slow  # type: ignore[assignment]
    messages = [Message("user", "x" * 16_000) for _ in range(1000)]
    assert counter.count("m", messages) > 1_000_000
    assert slow.chars <= 16_384


@pytest.mark.parametrize("path", ["/health", "/live", "/v1/models", "/metrics", "/ui/app.js"])
async def test_head_is_get_without_a_body(stack: Stack, path: str) -> None:
    async with stack.http.get(stack.url + path) as response:
        status, length = response.status, len(await response.read())
    async with stack.http.head(stack.url + path) as response:
        assert response.status == status
        assert abs(int(response.headers["content-length"]) - length) < 2000  # figures move
        assert await response.read() == b""


@pytest.mark.parametrize(
    "given",
    [f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{'a' * 32}-{'0' * 16}-01", f"ff-{'a' * 32}-{'b' * 16}-01"],
)
async def test_a_trace_that_is_none_is_not_told(stack: Stack, given: str) -> None:
    async with await stack.chat("hi", headers={"traceparent": given}) as response:
        assert response.headers["x-trace-id"] not in ("0" * 32, "a" * 32)
    assert "traceparent" not in stack.engines["d0"].requests[0].headers


async def test_a_chat_has_so_many_messages_at_most(stack: Stack) -> None:
    """A body of 16 MB could hold 570,000, and would hold up everybody for a second."""
    many = [{"role": "user", "content": ""}] * (MAX_MESSAGES + 1)
    async with await stack.chat(*many) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "messages"
    assert not stack.engines["p0"].requests
    assert (await stack.ask(*many[:-1]))[0] == "p-d"
