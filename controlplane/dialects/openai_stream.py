"""OpenAI's answers on their way to the client: usage, the answer's ends, and what must not reach the client.

A streamed chunk is passed on as it came, and parsed only where it holds usage or the engine's KV parameters.
"""

from typing import Any

import msgspec

from controlplane.dialects import body as bodies
from controlplane.dialects.base import Seen, Usage
from controlplane.dialects.sent_text import Sent, choices_of, kind_of
from ppd.core.identity import mark_of

_USAGE = b'"usage":'  # what an event must hold to be looked at
_KV = b'"kv_transfer_params":'
_DONE = b"data: [DONE]"
_DATA = b"data: "
DONE = _DONE + b"\n\n"


_usages = msgspec.json.Decoder(Usage)


def reported_usage(raw: bytes, usage: Usage, cached_tokens: int | None) -> bytes:
    """The engine's `raw` usage object with the counts of `usage`, and with what was cached before the turn;
    None leaves the engine's own figure."""
    fields = bodies.split(raw)
    fields["prompt_tokens"] = bodies.raw(usage.prompt_tokens)
    fields["completion_tokens"] = bodies.raw(usage.completion_tokens)
    if cached_tokens is None:
        return bodies.join(fields)
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


def strip_answer(data: bytes, seen: Seen, cached_tokens: int | None, moved_tokens: int = 0) -> bytes:
    """One JSON answer, or one event of a stream, without internals; fills `seen`. `moved_tokens`: of the
    engine's prompt, tokens that are really a part of the answer.

    Raises msgspec.DecodeError if it is no JSON object.
    """
    fields = bodies.split(data)
    changed = False
    for name in bodies.INTERNALS:
        if fields.pop(name, None) is not None:
            changed = True
    usage = fields.get("usage")
    if usage is not None and bytes(usage) != b"null":
        seen.usage = _usages.decode(usage)
        if moved_tokens:
            seen.usage.prompt_tokens -= moved_tokens
            seen.usage.completion_tokens = (seen.usage.completion_tokens or 0) + moved_tokens
        if moved_tokens or (cached_tokens is not None and cached_tokens != seen.usage.cached_tokens):
            changed = True
            fields["usage"] = msgspec.Raw(reported_usage(bytes(usage), seen.usage, cached_tokens))
    return bodies.join(fields) if changed else data


def whole_answer(data: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
    """An answer that is not streamed, as the client gets it. Raises msgspec.DecodeError."""
    clean = strip_answer(data, seen, cached_tokens)
    choices = choices_of(data)
    if len(choices) == 1:
        seen.mark = mark_of(choices[0].piece, choices[0].tool_call_id)
        seen.kind = kind_of(choices[0].piece, choices[0].kind)
    return clean


class StreamWatch:
    """One stream, over all engines that took part in it. `cached_tokens`: the usage's figure where it is not
    the engine's own."""

    def __init__(self, wants_usage: bool, single: bool, cached_tokens: int | None) -> None:
        self.seen = Seen()
        self.sent = Sent()
        self._wants_usage = wants_usage
        self._single = single  # one choice: what was sent says something
        self._cached_tokens = cached_tokens
        self._carry = b""
        self._last = b""
        self._moved_tokens = 0  # sent by engines before this one
        self._skip_role = False

    def resume(self, cached_tokens: int | None) -> None:
        """Another engine goes on: an event that was cut off is forgotten, its opening chunk is not sent."""
        self._carry = b""
        self._moved_tokens = self.sent.tokens
        self._skip_role = True
        self._cached_tokens = cached_tokens

    def feed(self, data: bytes) -> bytes:
        """What of `data`, and of an event begun before, the client gets now."""
        if self._carry or not data.endswith(b"\n\n"):
            data = self._carry + data
            cut = data.rfind(b"\n\n") + 2
            if cut == 1:
                self._carry = data
                return b""
            self._carry, data = data[cut:], data[:cut]
        self._last = data
        if self._skip_role or _USAGE in data or _KV in data:
            data = self._filter(data)
        self.sent.add(data)
        return data

    def _filter(self, data: bytes) -> bytes:
        """Whole events, of which only those are looked at that hold something to be changed."""
        if self._skip_role:
            data = self._without_opening(data)
        kept: list[bytes] = []
        done = 0  # so far
        usage, kv = data.find(_USAGE), data.find(_KV)
        while usage >= 0 or kv >= 0:
            found = usage if kv < 0 else kv if usage < 0 else min(usage, kv)
            begin = data.rfind(b"\n\n", done, found) + 2
            begin = begin if begin > 1 else done
            end = data.find(b"\n\n", found) + 2
            kept.append(data[done:begin])
            event = data[begin : end - 2]
            if event.startswith(_DATA):
                event = self._clean(event)
            if event:
                kept.append(event + b"\n\n")
            done = end
            usage = data.find(_USAGE, done) if 0 <= usage < done else usage
            kv = data.find(_KV, done) if 0 <= kv < done else kv
        kept.append(data[done:])
        return b"".join(kept)

    def _without_opening(self, data: bytes) -> bytes:
        at = 0 if data.startswith(_DATA) else data.find(b"\n\n" + _DATA) + 2
        if at == 1:  # comments alone
            return data
        self._skip_role = False
        end = data.find(b"\n\n", at)
        first = data[at:end]
        if b'"role":"assistant"' in first and not _says_anything(first):
            return data[:at] + data[end + 2 :]
        return data

    def _clean(self, event: bytes) -> bytes:
        payload = event[len(_DATA) :]
        try:
            clean = strip_answer(payload, self.seen, self._cached_tokens, self._moved_tokens)
            ends = bool(choices_of(payload))
        except msgspec.DecodeError:
            return event
        if not self._wants_usage and not ends:
            return b""  # the usage chunk, which only this frontend asked for
        return _DATA + clean

    def end(self) -> bytes:
        """The stream is over: what was left of an event."""
        rest, self._carry = self._carry, b""
        self.seen.done = self._last.rstrip().endswith(_DONE) or rest.rstrip().endswith(_DONE)
        if self._single:
            self.seen.mark = self.sent.mark()
            self.seen.kind = self.sent.kind()
        return rest


def _says_anything(event: bytes) -> bool:
    try:
        choices = choices_of(event[len(_DATA) :])
    except msgspec.DecodeError:
        return True
    return not all(choice.empty for choice in choices)


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
    return b"".join(encoded) + DONE
