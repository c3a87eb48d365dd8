"""Watches an answer go by: first token, usage, the answer's ends, and what must not reach the client.

A streamed chunk is passed on as it came. It is parsed only while the answer's head is not known yet, and
where it holds usage or the engine's KV parameters.
"""

from collections import deque
from typing import Any

import msgspec

from controlplane import body as bodies
from controlplane.handoff import Usage
from ppd.core.identity import HEAD_CHARS, TAIL_CHARS, AnswerMark, mark_of

_TAIL_READS = 24
_DONE = b"data: [DONE]"
_DATA = b"data: "


class _ToolCall(msgspec.Struct):
    id: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None

    @property
    def piece(self) -> str:
        part = self.delta or self.message
        return (part.content or "") if part is not None else (self.text or "")

    @property
    def tool_call_id(self) -> str:
        part = self.delta or self.message
        calls = part.tool_calls if part is not None else None
        return (calls[0].id or "") if calls else ""


class _Event(msgspec.Struct):
    choices: list[_Choice] = []


_events = msgspec.json.Decoder(_Event)
_usages = msgspec.json.Decoder(Usage)


class Seen:
    """What was learned from an answer."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.kv: dict[str, Any] | None = None  # D's parameters, for a pull-back
        self.mark: AnswerMark | None = None
        self.done = False  # the stream's last event was seen


def reported_usage(usage: bytes, cached_tokens: int | None) -> bytes:
    """The usage object with what was cached before the turn; None leaves the engine's own figure."""
    if cached_tokens is None:
        return usage
    fields = bodies.split(usage)
    if cached_tokens < 0:
        fields.pop("prompt_tokens_details", None)
    else:
        try:
            details = bodies.split(bytes(fields["prompt_tokens_details"]))
        except (KeyError, msgspec.DecodeError):
            details = {}
        details["cached_tokens"] = bodies.raw(cached_tokens)
        fields["prompt_tokens_details"] = msgspec.Raw(bodies.join(details))
    return bodies.join(fields)


def strip_answer(data: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
    """One JSON answer, or one event of a stream, without internals; fills `seen`.

    Raises msgspec.DecodeError if it is no JSON object.
    """
    fields = bodies.split(data)
    changed = False
    if (kv := fields.pop("kv_transfer_params", None)) is not None:
        changed = True
        seen.kv = msgspec.json.decode(kv) or None
    usage = fields.get("usage")
    if usage is not None and bytes(usage) != b"null":
        seen.usage = _usages.decode(usage)
        if cached_tokens is not None:
            changed = True
            fields["usage"] = msgspec.Raw(reported_usage(bytes(usage), cached_tokens))
    return bodies.join(fields) if changed else data


def whole_answer(data: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
    """An answer that is not streamed, as the client gets it. Raises msgspec.DecodeError."""
    clean = strip_answer(data, seen, cached_tokens)
    choices = _events.decode(data).choices
    if len(choices) == 1:
        seen.mark = mark_of(choices[0].piece, choices[0].tool_call_id)
    return clean


class StreamWatch:
    """One stream. `cached_tokens`: the usage's figure where it is not the engine's own."""

    def __init__(self, wants_usage: bool, single: bool, cached_tokens: int | None) -> None:
        self.seen = Seen()
        self._wants_usage = wants_usage
        self._single = single  # one choice: the answer's ends say something
        self._cached_tokens = cached_tokens
        self._carry = b""
        self._head = ""
        self._tool_call_id = ""
        self._tail: deque[bytes] = deque(maxlen=_TAIL_READS)

    def feed(self, data: bytes) -> bytes:
        """What of `data`, and of an event begun before, the client gets now."""
        if self._carry or not data.endswith(b"\n\n"):
            data = self._carry + data
            cut = data.rfind(b"\n\n") + 2
            if cut == 1:
                self._carry = data
                return b""
            self._carry, data = data[cut:], data[:cut]
        if self._single:
            self._tail.append(data)
            if len(self._head) < HEAD_CHARS:
                self._read_head(data)
        if b'"usage":{' in data or b'"kv_transfer_params":' in data or b'"usage": {' in data:
            return self._filter(data)
        return data

    def _read_head(self, data: bytes) -> None:
        for event in data.split(b"\n\n"):
            self._head = (self._head + self._text(event)).lstrip()
            if len(self._head) >= HEAD_CHARS:
                return

    def _read_tail(self) -> str:
        """The answer's last characters, as far as they are among the last reads."""
        tail = ""
        for data in reversed(self._tail):
            for event in reversed(data.split(b"\n\n")):
                tail = (self._text(event) + tail).rstrip()
                if len(tail) >= TAIL_CHARS:
                    return tail
        return tail

    def _text(self, event: bytes) -> str:
        if not event.startswith(b"data: {"):
            return ""
        try:
            choices = _events.decode(event[6:]).choices
        except msgspec.DecodeError:
            return ""
        if not choices:
            return ""
        self._tool_call_id = self._tool_call_id or choices[0].tool_call_id
        return choices[0].piece

    def _filter(self, data: bytes) -> bytes:
        kept: list[bytes] = []
        for event in data.split(b"\n\n"):
            if not event:
                continue
            if event.startswith(_DATA) and (b'"usage"' in event or b'"kv_transfer_params"' in event):
                event = self._clean(event)
            if event:
                kept.append(event + b"\n\n")
        return b"".join(kept)

    def _clean(self, event: bytes) -> bytes:
        payload = event[len(_DATA) :]
        try:
            clean = strip_answer(payload, self.seen, self._cached_tokens)
        except msgspec.DecodeError:
            return event
        if not self._wants_usage and not _events.decode(payload).choices:
            return b""  # the usage chunk, which only this frontend asked for
        return _DATA + clean

    def end(self) -> bytes:
        """The stream is over: what was left of an event."""
        last = self._tail[-1] if self._tail else b""
        rest, self._carry = self._carry, b""
        self.seen.done = last.rstrip().endswith(_DONE) or rest.rstrip().endswith(_DONE)
        if self._single:
            self.seen.mark = self._mark()
        return rest

    def _mark(self) -> AnswerMark | None:
        if len(self._head) < HEAD_CHARS:  # then it is all there is
            return mark_of(self._head, self._tool_call_id)
        tail = self._read_tail()
        if len(tail) < TAIL_CHARS:
            return None
        return AnswerMark(self._head[:HEAD_CHARS], tail[-TAIL_CHARS:], self._tool_call_id)


def as_stream(data: bytes, chat: bool, wants_usage: bool) -> bytes:
    """A whole answer as the stream that the client asked for. Raises msgspec.DecodeError."""
    answer = msgspec.json.decode(data, type=dict[str, Any])
    usage = answer.pop("usage", None)
    answer["object"] = "chat.completion.chunk" if chat else "text_completion"
    choices = answer.pop("choices", [])
    events: list[dict[str, Any]] = []
    for choice in choices:
        if chat:
            message = {
                key: value for key, value in choice.pop("message", {}).items() if value not in (None, [])
            }
            for number, call in enumerate(message.get("tool_calls", ())):
                call.setdefault("index", number)
            choice["delta"] = message
            finish = {
                "index": choice.get("index", 0),
                "delta": {},
                "finish_reason": choice.pop("finish_reason", None),
            }
            choice["finish_reason"] = None
            events += [{**answer, "choices": [choice]}, {**answer, "choices": [finish]}]
        else:
            events.append({**answer, "choices": [choice]})
    if wants_usage and usage is not None:
        events.append({**answer, "choices": [], "usage": usage})
    encoded = [_DATA + msgspec.json.encode(event) + b"\n\n" for event in events]
    return b"".join(encoded) + _DONE + b"\n\n"
