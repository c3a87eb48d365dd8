"""A body that begins as a known one is read as if it were read whole."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from controlplane.dialects.base import Request
from controlplane.dialects.body_prefix import MIN_BYTES, Prefixes
from controlplane.dialects.openai import Chat, Completions
from controlplane.errors import ApiError
from ppd.core import identity

pytestmark = pytest.mark.unit


def message(rng: random.Random, role: str) -> dict[str, Any]:
    text = rng.choice(["hello ", "grüße ", "你好 ", 'a "quoted" \\ ', "😀 ", "\n  "]) * rng.randrange(1, 900)
    made: dict[str, Any] = {"role": role, "content": f"{rng.random()} {text}"}
    kind = rng.random()
    if kind < 0.1:
        made["content"] = [{"type": "text", "text": text}, {"type": "text", "text": "tail"}]
    elif kind < 0.2 and role == "assistant":
        made["content"] = rng.choice([None, text])
        made["tool_calls"] = [{"id": f"c{rng.random()}", "function": {"name": "f", "arguments": "{}"}}]
    elif kind < 0.3:
        made["name"] = "n"
    elif kind < 0.4 and role == "user":
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 900}}
        made["content"] = [{"type": "text", "text": text}, image]
    return made


def same(one: Request, other: Request) -> None:
    """What the rest of the frontend sees of them."""
    assert one.keys == other.keys
    assert {name: bytes(raw) for name, raw in one.fields.items()} == {
        name: bytes(raw) for name, raw in other.fields.items()
    }
    assert [m.role for m in one.messages] == [m.role for m in other.messages]
    found = [list(identity.candidates(each.messages, each.keys)) for each in (one, other)]
    assert found[0] == found[1]
    for name in ("model", "stream", "n", "limit_tokens", "explicit_id", "size", "one_engine"):
        assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("seed", range(12))
def test_every_turn_of_a_chat_reads_the_same(seed: int) -> None:
    rng = random.Random(seed)
    prefixes = Prefixes()
    separators = rng.choice([(",", ":"), (", ", ": "), ("  ,\n", " :\t")])
    before: dict[str, Any] = rng.choice([{}, {"model": "m"}, {"x": {"messages!": []}, "stream": True}])
    listed = [message(rng, "system")]
    hits = 0
    for _ in range(14):
        listed.append(message(rng, rng.choice(["user", "tool"])))
        what = rng.random()
        if what < 0.15:  # edited
            listed[rng.randrange(len(listed))] = message(rng, "user")
        after = {"model": "m", "max_tokens": rng.randrange(1, 99), "tools": [{"a": rng.randrange(2)}]}
        text = json.dumps(
            {**before, "messages": listed, **after}, separators=separators, ensure_ascii=rng.random() < 0.5
        )
        data = text.encode()
        known = len(prefixes)
        headers = {b"x-session-id": b"s"} if rng.random() < 0.2 else {}
        same(Chat().parse(data, headers, prefixes), Chat().parse(data, headers, Prefixes()))
        hits += known > 0 and len(prefixes) == known
        if what > 0.9:  # the same question again
            same(Chat().parse(data, headers, prefixes), Chat().parse(data, headers, Prefixes()))
        listed.append(message(rng, "assistant"))
    assert hits > 0


def body(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def long_chat() -> tuple[Prefixes, list[dict[str, Any]]]:
    listed = [{"role": "user", "content": "x" * 2 * MIN_BYTES}]
    prefixes = Prefixes()
    Chat().parse(body(listed), {}, prefixes)
    assert len(prefixes) == 1
    return prefixes, listed


@pytest.mark.parametrize(
    ("tail", "param"),
    [
        (b',{"role":"wizard"}]}', "messages[1].role"),
        (b',{"content":"x"}]}', "messages[1]"),
        (b',{"role":"user","content":5}]}', "messages[1].content"),
        (b',{"role":"user"}', None),
        (b',{"role":"user","content":"\xff"}]}', None),
        (b",]}", None),
        (b',{"role":"user"}],"n":"x"}', "n"),
    ],
)
def test_errors_are_those_of_the_whole_body(tail: bytes, param: str | None) -> None:
    prefixes, listed = long_chat()
    data = body(listed).removesuffix(b"]}") + tail
    errors = []
    for known in (prefixes, Prefixes()):
        with pytest.raises(ApiError) as caught:
            Chat().parse(data, {}, known)
        errors.append((caught.value.message, caught.value.param))
    assert errors[0] == errors[1]
    if param:
        assert errors[0][1] == param


def test_a_second_field_of_that_name_is_never_mistaken_for_the_first() -> None:
    prefixes, listed = long_chat()
    more = [*listed, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    for data in (
        body(more)[:-1] + b',"messages":[{"role":"user","content":"other"}]}',
        body(more)[:-1] + b',"\\u006dessages":[{"role":"user","content":"other"}]}',
        json.dumps({"metadata": {"messages": more}, "model": "m", "messages": more}).encode(),
    ):
        for _ in range(2):
            same(Chat().parse(data, {}, prefixes), Chat().parse(data, {}, Prefixes()))


def test_what_is_remembered_is_bounded() -> None:
    prefixes = Prefixes(max_messages=100)
    for chat in range(200):
        listed = [{"role": "user", "content": f"{chat} " + "x" * MIN_BYTES}] * 3
        Chat().parse(body(listed), {}, prefixes)
    assert 1 < len(prefixes) <= 100 // 3
    Chat().parse(body([{"role": "user", "content": "x" * 999}] * 60), {}, prefixes)
    assert len(prefixes) <= 100 // 3


def test_short_bodies_and_other_kinds_are_not_kept() -> None:
    prefixes = Prefixes()
    Chat().parse(body([{"role": "user", "content": "x"}]), {}, prefixes)
    Completions().parse(json.dumps({"model": "m", "prompt": "x" * 2 * MIN_BYTES}).encode(), {}, prefixes)
    assert len(prefixes) == 0


def test_what_counts_as_the_same_beginning_cannot_be_worked_out_beforehand() -> None:
    code = "from controlplane.dialects import body_prefix as b; print(b._digests(memoryview(bytes(20_000))))"
    ran = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert ran[0] != ran[1]


def test_nobody_fills_the_memory_with_ids() -> None:
    prefixes = Prefixes()
    for call in ("c" * 100_000, ["c" * 100_000]):
        messages = [
            {"role": "user", "content": "x" * 20_000},
            {"role": "assistant", "tool_calls": [{"id": call}]},
        ]
        data = json.dumps({"model": "m", "messages": messages}).encode()
        Chat().parse(data, {}, prefixes)
        assert len(prefixes) == 0


def test_what_is_no_space_in_json_is_none() -> None:
    prefixes = Prefixes()
    first = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 20_000}]}).encode()
    Chat().parse(first, {}, prefixes)
    assert len(prefixes) == 1
    more = b',\x0b{"role": "user", "content": "y"}]}'
    with pytest.raises(ApiError):
        Chat().parse(first[:-2] + more, {}, prefixes)
