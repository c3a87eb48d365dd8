"""Recognizes a long body that begins like an earlier one, so that only its new part is parsed.

A chat's next turn sends the whole history again; most clients send the same bytes. What identity and
features need of the history is kept: keys, roles, the ends of answers. So the work for a turn depends on
what is new in it, and not on the length of the chat.
"""

import os
from collections import OrderedDict
from typing import NamedTuple

import msgspec
import xxhash

from controlplane.dialects import body as bodies
from controlplane.dialects.prompt_size import MeasuredMessage, PromptSize, of_message, text_of
from ppd.core.identity import HEAD_CHARS, TAIL_CHARS, Message

MIN_BYTES = 16 * 1024  # a shorter body is parsed as fast as it is recognized
_BLOCK_BYTES = 8 * 1024
_MAX_MESSAGES = 100_000  # over all entries: some 25 MB
_MAX_ID_CHARS = 256  # of a tool call: a body with a longer one is not remembered
_SPACE = b" \t\r\n"
_NAME = b'"messages"'
# Keyed with a secret, so that nobody can craft a second, unchecked body with the digest of a checked one.
_SEED = int.from_bytes(os.urandom(8))


class Known(NamedTuple):
    """The beginning of an earlier body, up to the end of a message."""

    end: int  # where the beginning ends
    rest: int  # digest of the bytes after its whole blocks
    array: int  # where the messages' array begins
    first: int  # where the first message begins
    messages: list[Message]
    keys: list[int]
    size: PromptSize  # of the messages


class Rest(NamedTuple):
    """A body without the messages of its known beginning."""

    known: Known
    data: bytes
    gap: int  # what was left out, bytes
    digests: list[int]  # of the whole body

    def whole(self, body: bytes, fields: bodies.Fields) -> msgspec.Raw | None:
        """All messages as the client sent them; None where the rest cannot be parsed as it seemed."""
        new = bytes(fields.get("messages", b""))
        at = self.known.array
        if not new.startswith(b"[") or not self.data.startswith(new, at) or self.data.count(_NAME) != 1:
            return None
        return msgspec.Raw(memoryview(body)[at : at + len(new) + self.gap])


class Prefixes:
    """Known beginnings by the digest of their whole blocks. The least recently used are dropped first."""

    def __init__(self, max_messages: int = _MAX_MESSAGES) -> None:
        self._max = max_messages
        self._known: OrderedDict[int, Known] = OrderedDict()
        self._messages = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, body: bytes) -> Rest | None:
        """The longest known beginning of this body, and the body without it."""
        if len(body) < MIN_BYTES:
            return None
        view = memoryview(body)
        digests = _digests(view)
        for blocks in range(len(digests), 0, -1):
            digest = digests[blocks - 1]
            known = self._known.get(digest)
            if known is None or known.end >= len(body) or _rest(view, blocks, known.end) != known.rest:
                continue
            after = _skip_space(body, known.end)
            if body[after : after + 1] == b",":
                after = _skip_space(body, after + 1)
                if body[after : after + 1] != b"{":
                    return None
            elif body[after : after + 1] != b"]":
                return None
            self._drop(digest)
            return Rest(known, body[: known.first] + body[after:], after - known.first, digests)
        return None

    def keep(
        self,
        body: bytes,
        fields: bodies.Fields,
        messages: list[Message],
        keys: list[int],
        size: PromptSize,
    ) -> None:
        """Remember a body that was parsed whole. `size`: of all its messages."""
        name = body.find(_NAME) if len(body) >= MIN_BYTES else -1
        if name < 0 or body.find(_NAME, name + 1) >= 0:
            return
        colon = _skip_space(body, name + len(_NAME))
        array = _skip_space(body, colon + 1)
        raw = bytes(fields["messages"])
        if body[colon : colon + 1] == b":" and body.startswith(raw, array):
            first = _skip_space(body, array + 1)
            self._keep(body, array, first, len(raw), _remember(messages), keys, size, None)

    def keep_on(
        self,
        body: bytes,
        rest: Rest,
        fields: bodies.Fields,
        new: list[Message],
        keys: list[int],
        size: PromptSize,
    ) -> None:
        """Remember a body whose beginning was known. `new`: the messages after that beginning."""
        known = rest.known
        n_bytes = memoryview(fields["messages"]).nbytes
        remembered = _remember(new)
        messages = None if remembered is None else known.messages + remembered
        self._keep(body, known.array, known.first, n_bytes, messages, keys, size, rest.digests)

    def _keep(
        self,
        body: bytes,
        array: int,
        first: int,
        n_bytes: int,
        messages: list[Message] | None,
        keys: list[int],
        size: PromptSize,
        digests: list[int] | None,
    ) -> None:
        if messages is None:
            return
        end = array + n_bytes - 1  # of the last message: before the closing bracket
        while body[end - 1] in _SPACE:
            end -= 1
        if end < _BLOCK_BYTES or len(messages) > self._max // 4:
            return
        view, blocks = memoryview(body), end // _BLOCK_BYTES
        digest = (digests or _digests(view))[blocks - 1]
        self._drop(digest)
        self._known[digest] = Known(end, _rest(view, blocks, end), array, first, messages, keys, size)
        self._messages += len(messages)
        while self._messages > self._max:
            self._drop(next(iter(self._known)))

    def _drop(self, digest: int) -> None:
        if known := self._known.pop(digest, None):
            self._messages -= len(known.messages)


def _skip_space(body: bytes, at: int) -> int:
    while at < len(body) and body[at] in _SPACE:
        at += 1
    return at


def _digests(view: memoryview) -> list[int]:
    """Digests of the first block, the first two blocks, and so on, over whole blocks."""
    hasher = xxhash.xxh3_64(seed=_SEED)
    found = []
    for at in range(0, len(view) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        hasher.update(view[at : at + _BLOCK_BYTES])
        found.append(hasher.intdigest())
    return found


def _rest(view: memoryview, blocks: int, end: int) -> int:
    """The digest of the bytes between the last whole block and `end`."""
    return xxhash.xxh3_64_intdigest(view[blocks * _BLOCK_BYTES : end], _SEED)


def _remember(messages: list[Message]) -> list[Message] | None:
    """None where they would take more than messages do."""
    small = [_small(message) for message in messages]
    heavy = any(
        each.tool_calls
        and not (isinstance(call := each.tool_calls[0]["id"], str) and len(call) <= _MAX_ID_CHARS)
        for each in small
    )
    return None if heavy else small


def _small(message: Message) -> Message:
    """The message reduced to its size and, for an answer, to what its mark is made of."""
    if isinstance(message, MeasuredMessage):
        return message
    size = of_message(message)
    if message.role != "assistant":
        return MeasuredMessage(message.role, text_bytes=size.text_bytes, media=size.media)
    bare = text_of(message.content).strip()
    if len(bare) > HEAD_CHARS + TAIL_CHARS:
        bare = bare[:HEAD_CHARS] + bare[-TAIL_CHARS:]
    calls = message.tool_calls
    first = [{"id": calls[0].get("id", "")}] if calls and isinstance(calls[0], dict) else None
    return MeasuredMessage(message.role, bare, tool_calls=first, text_bytes=size.text_bytes, media=size.media)
