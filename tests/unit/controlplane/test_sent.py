import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.dialects import sent_text
from controlplane.dialects.base import Seen
from controlplane.dialects.body_prefix import _small
from controlplane.dialects.openai_stream import whole_answer
from controlplane.dialects.sent_text import Sent
from ppd.core import identity
from ppd.core.identity import Message, mark_of

pytestmark = pytest.mark.unit


def event(piece: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": piece}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


TOOL_CALL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call-1"}]}}]}\n\n'
# White space often, so that it falls on every place that matters to a mark.
SPACE = st.text(" \n\t", max_size=40)
TEXT = st.tuples(SPACE, st.text(st.sampled_from("ab é漢\n"), max_size=60), SPACE).map("".join)


@given(TEXT, st.lists(st.integers(0, 120), max_size=30), st.integers(1, 5), st.booleans(), st.booleans())
def test_streamed_whole_and_sent_again_have_one_mark(
    text: str, cuts: list[int], at_once: int, boil: bool, calls: bool
) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    events = [event(piece) for piece in pieces] + ([TOOL_CALL] if calls else []) + [event("", "stop")]
    seen = Sent()
    for i in range(0, len(events), at_once):
        seen.add(b"".join(events[i : i + at_once]))
        if boil:
            assert text.startswith(seen.text)
    tool_calls = [{"id": "call-1", "type": "function"}] if calls else None
    answer = {"choices": [{"message": {"content": text, "tool_calls": tool_calls or []}}]}
    whole = Seen()
    whole_answer(json.dumps(answer).encode(), whole, None)
    mark = mark_of(text, "call-1" if calls else "")
    assert seen.mark() == whole.mark == mark
    assert seen.text == text
    for content in (text, text.strip(), [{"type": "text", "text": text}]):
        message = Message("assistant", content, tool_calls=tool_calls)
        for sent_again in (message, _small(message)):
            (place,) = identity.candidates([sent_again], [1, 2])
            assert place.after == identity.after_key(1, mark)


def test_white_space_after_the_text_does_not_count() -> None:
    seen = Sent()
    for piece in ("The capital of Japan", " is Tokyo.", "\n\n"):
        seen.add(event(piece))
    assert seen.mark() == mark_of("The capital of Japan is Tokyo.")


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
