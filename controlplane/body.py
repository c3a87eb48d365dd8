"""A JSON object's top-level fields as raw bytes: a forwarded body keeps the client's order and bytes."""

from typing import Any

import msgspec

Fields = dict[str, msgspec.Raw]

_decoder = msgspec.json.Decoder(Fields)
_encode = msgspec.json.Encoder().encode


def split(body: bytes) -> Fields:
    """The fields of a JSON object, values untouched; of a doubled key the last counts, as in Python's json.

    Raises msgspec.DecodeError (or ValidationError, its subclass) if it is none, UnicodeDecodeError if it
    is no UTF-8: values that nobody here reads would otherwise reach an engine unchecked.
    """
    str(body, "utf-8")
    return _decoder.decode(body)


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))


def join(fields: Fields) -> bytes:
    """The object again, its values byte for byte. A long value is copied once."""
    parts: list[bytes | msgspec.Raw] = []
    opening = b"{"
    for key, value in fields.items():
        parts += (opening, _encode(key), b":", value)
        opening = b","
    if not parts:
        return b"{}"
    parts.append(b"}")
    return b"".join(parts)
