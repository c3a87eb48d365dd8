"""What Anthropic's and OpenAI's own SDKs make of the frontend's answers and errors."""

from typing import Any

import openai
import pytest

from ppd.core.names import Role
from tests.support.answers import TEXT
from tests.unit.controlplane.conftest import QUICK, Stack, running
from tests.unit.controlplane.fakes import Fault

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.unit

HI = [{"role": "user", "content": "hi"}]


def claude(stack: Stack) -> Any:
    return anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0)


def gpt(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=stack.url + "/v1", api_key="none", max_retries=0)


async def test_messages(stack: Stack) -> None:
    async with claude(stack) as client:
        answer = await client.messages.create(model="m", max_tokens=9, messages=HI)
        assert answer.content[0].text == TEXT
        assert answer.usage.output_tokens == 5
        async with client.messages.stream(model="m", max_tokens=9, messages=HI) as stream:
            assert "".join([piece async for piece in stream.text_stream]) == TEXT
            assert (await stream.get_final_message()).stop_reason == "end_turn"
        counted = await client.messages.count_tokens(model="m", messages=HI)
        assert counted.input_tokens > 0


async def test_the_errors_of_messages_are_the_sdks_exceptions(stack: Stack) -> None:
    async with claude(stack) as client:
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.messages.create(model="nope", max_tokens=9, messages=HI)
        assert caught.value.body["error"]["type"] == "not_found_error"
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(model="", max_tokens=9, messages=HI)


async def test_a_broken_message_is_not_taken_for_a_finished_one() -> None:
    async with running({"d0": Role.DECODE}, **QUICK) as stack, claude(stack) as client:
        stack.engines["d0"].faults.append(Fault("close", after=4))
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with client.messages.stream(model="m", max_tokens=9, messages=HI) as stream:
                await stream.get_final_message()
        assert caught.value.body["error"]["type"] == "api_error"


async def test_responses(stack: Stack) -> None:
    async with gpt(stack) as client:
        answer = await client.responses.create(model="m", input="hi")
        assert answer.output_text == TEXT
        assert answer.usage.input_tokens_details.cached_tokens == 0
        stream = await client.responses.create(model="m", input="hi", stream=True)
        events = [event async for event in stream]
        assert "".join(event.delta for event in events if event.type.endswith("text.delta")) == TEXT
        assert events[-1].type == "response.completed"


async def test_a_broken_response_is_not_taken_for_a_finished_one() -> None:
    async with running({"d0": Role.DECODE}, **QUICK) as stack, gpt(stack) as client:
        stack.engines["d0"].faults.append(Fault("close", after=4))
        stream = await client.responses.create(model="m", input="hi", stream=True)
        with pytest.raises(openai.APIError, match="in the middle"):
            async for _ in stream:
                pass
