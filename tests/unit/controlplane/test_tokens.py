"""Token estimates, for texts of any script and escaping, and for images."""

import base64
import json
import logging
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.dialects.base import Request
from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.messages import Messages
from controlplane.dialects.openai import Chat, Completions
from controlplane.dialects.prompt_size import of_messages, utf8_bytes
from controlplane.dialects.responses import Responses
from controlplane.turn.tokens import TokenCounter
from ppd.core.identity import Message
from tests.unit.controlplane.conftest import Stack

pytestmark = pytest.mark.unit

ENGLISH = "The quick brown fox jumps over the lazy dog. " * 40
CHINESE = "敏捷的棕色狐狸跳过了懒狗。" * 60
EMOJI = "🦊🐶🏃‍♀️💨" * 80
BYTES_PER_TOKEN = 3.0  # of the engine that the tests imagine
IMAGE_TOKENS = 1300
TEMPLATE_TOKENS = 5  # around each message


def image() -> dict[str, Any]:
    data = base64.b64encode(os.urandom(225_000)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def request(*contents: Any, escaped: bool = False, **fields: Any) -> Request:
    messages = [
        {"role": "assistant" if i % 2 else "user", "content": content} for i, content in enumerate(contents)
    ]
    body = {"model": "m", "messages": messages, **fields}
    return Chat().parse(json.dumps(body, ensure_ascii=escaped).encode(), {}, Prefixes())


def engine_tokens(text: str, messages: int = 1, images: int = 0) -> int:
    return round(len(text.encode()) / BYTES_PER_TOKEN) + TEMPLATE_TOKENS * messages + IMAGE_TOKENS * images


def taught(*texts: str, escaped: bool = False) -> TokenCounter:
    counter = TokenCounter(logging.getLogger("test"))
    for text in texts:
        counter.learn("m", request(text, escaped=escaped).size, engine_tokens(text))
    return counter


@pytest.mark.parametrize("escaped", [False, True], ids=["utf-8", "escaped"])
@pytest.mark.parametrize("text", [ENGLISH, CHINESE, EMOJI], ids=["english", "chinese", "emoji"])
def test_estimates_are_those_of_the_text_whatever_carries_it(text: str, escaped: bool) -> None:
    counter = taught(*[text] * 20, escaped=escaped)
    new = request(text, "yes", text, escaped=escaped)
    assert counter.estimate("m", new.size) == pytest.approx(engine_tokens(text + "yes" + text, 3), rel=0.02)
    later = counter.count("m", new.messages[2:])
    assert later == pytest.approx(engine_tokens(text), rel=0.02)
    asked_otherwise = request(text, escaped=not escaped)
    assert counter.estimate("m", asked_otherwise.size) == pytest.approx(engine_tokens(text), rel=0.02)


def test_images_do_not_teach_the_text_ratio() -> None:
    counter = taught(*[ENGLISH] * 20)
    before = counter.estimate("m", request(ENGLISH).size)
    content = [{"type": "text", "text": "What is it?"}, image()]
    for _ in range(27):
        counter.learn("m", request(content).size, engine_tokens("What is it?", images=1))
    assert counter.estimate("m", request(ENGLISH).size) == before


def test_an_image_counts_the_same_on_every_turn() -> None:
    counter = taught(*[ENGLISH] * 20)
    content = [{"type": "text", "text": "What is it?"}, image()]
    first = request(content)
    later = request(ENGLISH, "yes", content)
    for _ in range(2):
        one, two = counter.estimate("m", first.size), counter.count("m", later.messages[2:])
        assert one == two
        for _ in range(100):
            counter.learn("m", first.size, engine_tokens("What is it?", images=1))
    assert one == pytest.approx(engine_tokens("What is it?", images=1), rel=0.02)


def test_before_anything_is_known_an_image_is_no_ocean() -> None:
    counter = TokenCounter(logging.getLogger("test"))
    assert counter.estimate("m", request([{"type": "text", "text": "x"}, image()]).size) < 5000


def test_tools_and_tool_calls_are_text() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": CHINESE}}]
    plain, escaped = request("x", tools=tools), request("x", tools=tools, escaped=True)
    assert plain.size.text_bytes >= utf8_bytes(CHINESE)
    assert escaped.size.text_bytes == pytest.approx(plain.size.text_bytes, rel=0.01)
    huge = b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":["\\u0041",%b]}' % (b"9" * 5000)
    assert Chat().parse(huge, {}, Prefixes()).size.text_bytes > 5000
    call = {"id": "c", "function": {"name": "f", "arguments": json.dumps({"text": ENGLISH})}}
    asked = Message("assistant", None, tool_calls=[call])
    assert of_messages([asked]).text_bytes > len(ENGLISH)


@pytest.mark.parametrize(
    ("prompt", "text_bytes", "tokens"),
    [("你好", 6, 0), (["ab", "c"], 3, 0), ([1, 2, 3], 0, 3), ([[1, 2], [3]], 0, 3)],
)
def test_prompts_of_completions(prompt: Any, text_bytes: int, tokens: int) -> None:
    size = Completions().parse(json.dumps({"model": "m", "prompt": prompt}).encode(), {}, Prefixes()).size
    assert (size.text_bytes, size.tokens) == (text_bytes, tokens)


def test_other_apis_count_alike() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 900}}
    content = [{"type": "text", "text": CHINESE}, image]
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    size = Messages().parse(json.dumps(asked).encode(), {}, Prefixes()).size
    assert size[:3] == (1, utf8_bytes(CHINESE), 1)
    parts = [
        {"type": "input_text", "text": CHINESE},
        {"type": "input_image", "image_url": "data:" + "A" * 900},
    ]
    asked = {"model": "m", "input": [{"role": "user", "content": parts}]}
    size = Responses().parse(json.dumps(asked).encode(), {}, Prefixes()).size
    assert size[:3] == (1, utf8_bytes(CHINESE), 1)


@given(st.text())
def test_utf8_bytes(text: str) -> None:
    assert utf8_bytes(text) == len(text.encode())


async def test_turns_teach_the_frontend(stack: Stack) -> None:
    """The fake engine makes one token of each character."""
    for _ in range(3):
        await stack.ask(ENGLISH)
    told = stack.frontend.ledger.recent[-1].n_prompt_tokens
    assert stack.frontend.tokens.estimate("m", request(ENGLISH).size) == pytest.approx(told, rel=0.1)
