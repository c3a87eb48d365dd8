"""A stream whose D died goes on elsewhere: prompt plus what was sent already, continued by another engine."""

import copy

import msgspec

from controlplane.dialects import body as bodies
from controlplane.dialects.base import Request
from controlplane.dialects.sent_text import Sent

# With these an answer's text alone does not say how it goes on.
_NOT_BY_TEXT = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "tools",
    "functions",
    "continue_final_message",
    "add_generation_prompt",
)
_LIMITS = ("max_tokens", "max_completion_tokens", "min_tokens")
_TRUE, _FALSE, _NULL = msgspec.Raw(b"true"), msgspec.Raw(b"false"), b"null"


def continuation(request: Request, sent: Sent, chat: bool) -> Request | None:
    """The request by which another engine goes on after `sent`; None where that cannot be expressed, or
    where the limit leaves nothing to go on with."""
    if request.one_engine or not sent.plain or _asks(request):
        return None
    fields = dict(request.fields)
    if not sent.text:
        return request
    for name in _LIMITS:
        if name in fields and bytes(fields[name]) != _NULL:
            left = msgspec.json.decode(fields[name], type=int, strict=False) - sent.tokens
            if left < 1 and name != "min_tokens":
                return None
            fields[name] = bodies.raw(max(left, 0))
    if chat:
        answer = bodies.raw({"role": "assistant", "content": sent.text})
        fields["messages"] = msgspec.Raw(
            bytes(fields["messages"]).rstrip()[:-1] + b"," + bytes(answer) + b"]"
        )
        fields["continue_final_message"], fields["add_generation_prompt"] = _TRUE, _FALSE
    else:
        prompt = msgspec.json.decode(fields["prompt"])
        if not isinstance(prompt, str):
            return None
        fields["prompt"] = bodies.raw(prompt + sent.text)
    moved = copy.copy(request)
    moved.fields = fields
    return moved


def _asks(request: Request) -> bool:
    """Whether the request asks for more than text."""
    return any(
        bytes(request.fields.get(name, msgspec.Raw(_NULL))) not in (_NULL, b"[]") for name in _NOT_BY_TEXT
    )
