"""Bytes -> request, for endpoints whose turns run whole on one engine: Responses, Messages, tokenize."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from controlplane.errors import ApiError
from controlplane.turn import body as bodies
from controlplane.turn.parse import MAX_ID_CHARS, MAX_MESSAGES, Count, drop_internal, read
from ppd.core import identity
from ppd.core.identity import Message
from ppd.core.names import H_SESSION

# Where each names the longest answer; Messages demands that it is named.
_LIMITS = {"/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}


class _Body(msgspec.Struct):
    model: str = ""
    stream: bool | None = None
    max_tokens: Count | None = None
    max_output_tokens: Count | None = None
    previous_response_id: str | None = None
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()


class _Item(msgspec.Struct):
    """A message of either kind; of other items, such as a tool's output, the type stands for the role."""

    role: str = ""
    type: str = ""
    content: str | list[Any] | None = None


_decoder = msgspec.json.Decoder(_Body, strict=False)
_items = msgspec.json.Decoder(Annotated[list[_Item], msgspec.Meta(max_length=MAX_MESSAGES)])


class Asked:
    """One such request."""

    __slots__ = ("explicit_id", "fields", "keys", "messages", "model", "previous")

    def __init__(self, data: bytes, path: str, headers: Mapping[bytes, bytes], max_tokens: int) -> None:
        """`max_tokens`: that the caller's key allows; 0 = as many as asked for. Raises ApiError."""
        self.fields, parsed = read(data, _decoder)
        if not parsed.model:
            raise ApiError(400, "you must provide a model parameter", param="model")
        self.model = parsed.model
        drop_internal(self.fields)
        if max_tokens and (limit := _LIMITS.get(path)):
            self._hold_to(max_tokens, limit, getattr(parsed, limit))
        self.previous = parsed.previous_response_id or ""
        self.explicit_id = headers.get(H_SESSION.encode(), b"").decode("latin-1")
        if len(self.explicit_id) > MAX_ID_CHARS:
            raise ApiError(400, f"a conversation's id may have at most {MAX_ID_CHARS} characters")
        self.messages = _history(bytes(parsed.messages) or bytes(parsed.input))
        seed = bytes(parsed.system) + bytes(parsed.instructions) + bytes(parsed.tools)
        start = identity.seed(self.model, path.encode() + seed, self.explicit_id)
        self.keys = identity.history_keys(self.messages, start)

    def _hold_to(self, most: int, name: str, asked: int | None) -> None:
        if asked is None:
            self.fields[name] = bodies.raw(most)
        elif asked > most:
            raise ApiError(400, f"with this key an answer may have {most} tokens", param=name)


def _history(raw: bytes) -> list[Message]:
    """The messages, as far as they can be told apart; where they cannot the engine is the judge."""
    try:
        return [Message(item.role or item.type, item.content) for item in _items.decode(raw)]
    except (msgspec.DecodeError, RecursionError):
        return []
