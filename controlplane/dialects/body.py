"""A JSON object's top-level fields as raw bytes: a forwarded body keeps the client's order and bytes."""

from typing import Any

import msgspec

Fields = dict[str, msgspec.Raw]
INTERNALS = (
    "kv_transfer_params",
    "ec_transfer_params",
)  # fields of engines' answers that clients must not see

_decoder = msgspec.json.Decoder(Fields)
_encode = msgspec.json.Encoder().encode
# Names that most bodies have, as they are written.
_NAMES = {
    name: f'"{name}":'.encode()
    for name in (
        *("model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
        *("temperature", "top_p", "seed", "stop", "tools", "tool_choice", "n", "kv_transfer_params"),
        *("id", "object", "created", "choices", "usage", "system_fingerprint", "service_tier"),
        *("prompt_logprobs", "prompt_token_ids", "prompt_tokens", "completion_tokens", "total_tokens"),
        *("prompt_tokens_details", "cached_tokens"),
    )
}


def split(body: bytes) -> Fields:
    """The fields of a JSON object as raw values. If a name comes twice the last value counts, as in Python's
    json.

    Raises msgspec.DecodeError, or its subclass ValidationError, where the bytes are no JSON object, and
    UnicodeDecodeError where they are not UTF-8: values that nobody here reads would otherwise reach an
    engine unchecked.
    """
    str(body, "utf-8")
    return _decoder.decode(body)


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def join(fields: Fields) -> bytes:
    """The object as JSON, with the same bytes for each value. A long value is copied once."""
    if not fields:
        return b"{}"
    parts: list[bytes | msgspec.Raw] = [b"{"]
    for key, value in fields.items():
        parts += (_NAMES.get(key) or b"%b:" % _encode(key), value, b",")
    parts[-1] = b"}"
    return b"".join(parts)


def extended(raw: bytes, **more: Any) -> bytes:
    """A JSON object with further fields appended. If a name comes twice the last value counts."""
    fields = _encode(more)
    body = raw.strip()[1:-1]
    return b"{%b,%b" % (body, fields[1:]) if body.strip() else fields
