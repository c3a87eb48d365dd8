"""Which conversation a request continues: a rolling hash with one key per message boundary.

`keys[i]` stands for the first i messages under the model, the tools and the caller's explicit id. After a
turn, the key of the history up to the question (*boundary*) is kept, and the key of the same history with
the answer's mark (*after*): its first and last characters, which a relay knows without reading all of a
long stream. A later request is matched by its longest known key. Keys choose where a turn runs, never what
it answers, so 64 bits and a hash that is not cryptographic are enough.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash

HEAD_CHARS = 32
TAIL_CHARS = 16

_sorted = msgspec.json.Encoder(order="sorted")


class Message(msgspec.Struct):
    """What of a chat message makes up its identity; other fields are the engine's business."""

    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None


class AnswerMark(NamedTuple):
    """What tells one answer from another: its ends, and the first tool call's random id."""

    head: str
    tail: str
    tool_call_id: str = ""


class Candidate(NamedTuple):
    """A place at which the request's history may meet a known one; None where a key cannot be made."""

    after: int | None
    boundary: int
    messages: int  # how many messages lie before the place


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def seed(model: str, tools: bytes = b"", explicit_id: str = "") -> int:
    """The key of the empty history. Equal histories under another model, tools or id are unlike."""
    return xxhash.xxh3_64_intdigest(
        tools, xxhash.xxh3_64_intdigest(_utf8(f"{len(model)}:{model}{explicit_id}"))
    )


def _canonical(message: Message) -> bytes:
    content = message.content
    if (
        content.__class__ is str
        and message.tool_calls is None
        and message.name is None
        and not message.tool_call_id
    ):
        return _utf8(f"{len(message.role)}:{message.role}{content}")
    fields = (message.role, content, message.name, message.tool_calls, message.tool_call_id)
    return b"\x00" + _sorted.encode(fields)


def history_keys(messages: Sequence[Message], start: int) -> list[int]:
    """One key per boundary: `keys[i]` covers `messages[:i]`, and `keys[0]` is `start`."""
    digest = xxhash.xxh3_64_intdigest
    keys = [start]
    key = start
    for message in messages:
        key = digest(_canonical(message), key)
        keys.append(key)
    return keys


def mark_of(text: str, tool_call_id: str = "") -> AnswerMark:
    """The mark of a whole answer; white space around it does not count, since clients trim it."""
    return mark_of_pieces((text,), (text,), tool_call_id)


def mark_of_pieces(forward: Iterable[str], backward: Iterable[str], tool_call_id: str = "") -> AnswerMark:
    """The mark of an answer that came in pieces, passed in their order and in reverse order. Neither is read
    further than the mark needs."""
    head = ""
    for piece in forward:
        head = (head + piece).lstrip()
        if len(head.rstrip()) >= HEAD_CHARS:
            break
    else:
        bare = head.rstrip()
        return AnswerMark(bare, bare[-TAIL_CHARS:], tool_call_id)
    tail = ""
    for piece in backward:
        tail = (piece + tail).rstrip()
        if len(tail) >= TAIL_CHARS:
            break
    return AnswerMark(head[:HEAD_CHARS], tail[-TAIL_CHARS:], tool_call_id)


def after_key(boundary: int, mark: AnswerMark) -> int:
    """The key of the history at `boundary` continued by the answer that has this mark."""
    text = f"{len(mark.head)}:{mark.head}{len(mark.tail)}:{mark.tail}{mark.tool_call_id}"
    return xxhash.xxh3_64_intdigest(_utf8(text), boundary)


def _mark_of_message(message: Message) -> AnswerMark:
    tool_call_id = ""
    if message.tool_calls and isinstance(message.tool_calls[0], dict):
        tool_call_id = str(message.tool_calls[0].get("id", ""))
    content = message.content
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return mark_of(content or "", tool_call_id)


def candidates(messages: Sequence[Message], keys: Sequence[int]) -> Iterator[Candidate]:
    """The places where this history may meet a known one, the longest first.

    A request without an earlier answer begins a conversation and yields none: many chats begin alike.
    """
    last = True
    for i in range(len(messages) - 1, -1, -1):  # mostly one of the first fits: the history may be long
        if messages[i].role != "assistant":
            continue
        if last and i != len(messages) - 1:
            yield Candidate(
                None, keys[-1], len(messages)
            )  # the same question again: regenerate, or sent twice
        last = False
        yield Candidate(after_key(keys[i], _mark_of_message(messages[i])), keys[i], i)
