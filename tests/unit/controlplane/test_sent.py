import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.turn import sent_text
from controlplane.turn.sent_text import Sent
from ppd.core.identity import mark_of

pytestmark = pytest.mark.unit


def event(piece: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": piece}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=60), st.booleans(), st.integers(1, 5))
def test_the_ends_are_those_of_the_whole_text(pieces: list[str], boil: bool, at_once: int) -> None:
    text = "".join(pieces)
    bare = text.strip()
    seen = Sent()
    for i in range(0, len(pieces), at_once):
        seen.add(b"".join(event(piece) for piece in pieces[i : i + at_once]))
        if boil:
            assert seen.text == "".join(pieces[: i + at_once])
    mark = seen.mark()
    assert mark.head.strip() == mark_of(text).head.strip() or bare[:32].strip() == mark.head.strip()
    assert mark.tail == mark_of(text).tail or len(bare) > 32
    assert seen.text == text
    assert seen.tokens == len(pieces)


def test_long_streams_are_boiled_down() -> None:
    seen = Sent()
    for _ in range(3000):
        seen.add(event(" word"))
    assert seen._size <= sent_text._RAW_BYTES
    assert seen.mark() == mark_of(" word" * 3000)
    assert seen.tokens == 3000


def test_what_is_not_plain_text_is_noticed() -> None:
    seen = Sent()
    seen.add(b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call-1"}]}}]}\n\n')
    assert seen.mark().tool_call_id == "call-1"
    assert not seen.plain
    assert not seen.finished
    seen.add(event("", "tool_calls"))
    assert seen.finished
