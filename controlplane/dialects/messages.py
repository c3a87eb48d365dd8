"""Anthropic's Messages."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from controlplane.dialects import body as bodies
from controlplane.dialects import prompt_size
from controlplane.dialects.base import Generating, Prefilled, Request, Seen, Usage
from controlplane.dialects.body import Fields
from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.events import EventWatch, event, parts
from controlplane.dialects.fields import (
    MAX_MESSAGES,
    Count,
    drop_internal,
    explicit_id,
    hold,
    read,
    start_of_history,
    usable_kv,
)
from controlplane.dialects.sent_text import Choice, kind_of, kind_with
from controlplane.errors import ANTHROPIC
from ppd.core import identity
from ppd.core.identity import Message, mark_of

_ONE = msgspec.Raw(b"1")
# Claude Code's first system block names the request; engines leave it out of the prompt.
_BILLING = "x-anthropic-billing-header"
_CLIENTS_FAULT = frozenset({"invalid_request_error", "BadRequestError"})
_Content = str | list[Any] | None


class _Asked(msgspec.Struct):
    role: str = ""
    content: _Content = None


class _Body(msgspec.Struct):
    model: str = ""
    messages: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    max_tokens: Count | None = None
    cache_salt: str | None = None


_decoder = msgspec.json.Decoder(_Body, strict=False)
_listed = msgspec.json.Decoder(Annotated[list[_Asked], msgspec.Meta(max_length=MAX_MESSAGES)])
_contents = msgspec.json.Decoder(_Content)


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int | None = 0
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def usage(self) -> Usage:
        cached = self.cache_read_input_tokens
        prompt = self.input_tokens + (cached or 0) + (self.cache_creation_input_tokens or 0)
        return Usage.of(prompt, self.output_tokens or 0, cached)


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    id: str | None = None


class _Answer(msgspec.Struct):
    content: list[_Block] = []
    stop_reason: str | None = None
    usage: _Usage | None = None
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


class _Delta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: _Delta | None = None
    content_block: _Block | None = None


_answers = msgspec.json.Decoder(_Answer)
_usages = msgspec.json.Decoder(_Usage)
_events = msgspec.json.Decoder(_Event)


class Messages(Generating):
    """`/v1/messages`."""

    operation = "chat"
    errors = ANTHROPIC
    not_found_is_final = True

    def parse(
        self, data: bytes, headers: Mapping[bytes, bytes], prefixes: Prefixes, caller: str = ""
    ) -> Request:
        fields, parsed = read(data, _decoder)
        own_id = explicit_id(headers, None, caller)
        drop_internal(fields)
        messages = history(bytes(parsed.system), bytes(parsed.messages))
        start = start_of_history(parsed.model, bytes(parsed.tools), parsed.cache_salt, own_id)
        return Request(
            dialect=self,
            fields=fields,
            model=parsed.model,
            size=prompt_size.of_messages(messages).plus(prompt_size.of_tools(bytes(parsed.tools))),
            messages=messages,
            keys=identity.history_keys(messages, start),
            explicit_id=own_id,
            stream=bool(parsed.stream),
            limit_tokens=parsed.max_tokens,
        )

    def hold_to(self, request: Request, max_tokens: int) -> None:
        asked = request.limit_tokens
        request.limit_tokens = hold(request.fields, "max_tokens", asked, max_tokens, max_tokens)

    def one_token(self, fields: Fields) -> None:
        fields.pop("stream", None)
        fields["max_tokens"] = _ONE

    def prefilled(self, body: bytes) -> Prefilled:
        answer = _answers.decode(body)
        usage = (answer.usage or _Usage()).usage()
        kv = usable_kv(answer.kv_transfer_params)
        ended = answer.stop_reason not in (None, "max_tokens")
        return Prefilled(body, kv, kv is None and ended, usage.prompt_tokens, usage.cached_tokens)

    def whole(self, body: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
        answer = _answers.decode(body)
        text = "".join(block.text or "" for block in answer.content)
        call = next((block.id or "" for block in answer.content if block.type == "tool_use"), "")
        seen.mark = mark_of(text, call)
        thought = any(block.type in ("thinking", "redacted_thinking") for block in answer.content)
        seen.kind = kind_of(text, kind_with(thought, bool(call)))
        return _cleaned(body, seen, cached_tokens)

    def watch(self, request: Request, cached_tokens: int | None) -> EventWatch:
        return _Watch(_said, cached_tokens)

    def as_stream(self, body: bytes, request: Request) -> bytes:
        return as_stream(body)

    def first_error(self, data: bytes) -> tuple[bytes, Any] | None:
        name, payload = parts(data.split(b"\n\n")[0])
        if name != b"error":
            return None
        try:
            kind = msgspec.json.decode(payload)["error"]["type"]
        except (msgspec.DecodeError, KeyError, TypeError):
            kind = None
        return payload, 400 if kind in _CLIENTS_FAULT else None


def history(system: bytes, messages: bytes) -> list[Message]:
    """The chat that engines make of a request, as far as identity needs it. Empty where it cannot be read:
    the engine then judges it.
    """
    found: list[Message] = []
    try:
        if system and (text := _system_text(_contents.decode(system))):
            found.append(Message("system", text))
        for asked in _listed.decode(messages):
            _convert(asked, found)
    except (msgspec.DecodeError, RecursionError):
        return []
    return found


def _system_text(content: _Content) -> str:
    if isinstance(content, str):
        return content
    texts = [str(each.get("text") or "") for each in content or () if isinstance(each, dict)]
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _convert(asked: _Asked, found: list[Message]) -> None:
    """Append one message; tool results in it become messages of their own, as in a chat."""
    content = asked.content
    if not isinstance(content, list):
        found.append(Message(asked.role, content))
        return
    listed: list[Any] = []
    calls: list[Any] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            listed.append({"type": "text", "text": str(block.get("text") or "")})
        elif kind == "tool_use":
            arguments = msgspec.json.encode(block.get("input") or {}).decode()
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            result = block.get("content")
            text = result if isinstance(result, str) else _system_text(result or [])
            found.append(Message("tool", text, tool_call_id=str(block.get("tool_use_id") or "")))
        elif kind not in ("thinking", "redacted_thinking"):
            listed.append(block)
    if listed or calls:
        single = len(listed) == 1 and listed[0].get("type") == "text"
        parts_ = listed[0]["text"] if single else listed or None
        found.append(Message(asked.role, parts_, tool_calls=calls or None))


def _cleaned(raw: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
    """An object with a usage, without the engine's internals."""
    fields = bodies.split(raw)
    changed = [fields.pop(name, None) for name in bodies.INTERNALS]
    usage = fields.get("usage")
    if usage is not None and bytes(usage) != b"null":
        found = seen.usage = _usages.decode(usage).usage()
        if cached_tokens is not None and cached_tokens != found.cached_tokens:
            fields["usage"] = _reported(bytes(usage), found.prompt_tokens, cached_tokens)
            return bodies.join(fields)
    return bodies.join(fields) if any(each is not None for each in changed) else raw


def _reported(raw: bytes, prompt_tokens: int, cached_tokens: int) -> msgspec.Raw:
    """The engine's usage with the tokens that were cached before the turn; -1: not known."""
    fields = bodies.split(raw)
    fields.pop("cache_creation_input_tokens", None)
    fields.pop("cache_read_input_tokens", None)
    fields["input_tokens"] = bodies.raw(prompt_tokens - max(0, cached_tokens))
    if cached_tokens >= 0:
        fields["cache_read_input_tokens"] = bodies.raw(cached_tokens)
    return msgspec.Raw(bodies.join(fields))


class _Watch(EventWatch):
    markers = (b'"usage":', b'"kv_transfer_params":')
    last_events = (b"message_stop",)

    def clean(self, name: bytes, data: bytes) -> bytes:
        if name != b"message_start":
            return _cleaned(data, self.seen, self._cached_tokens)
        fields = bodies.split(data)
        if "message" in fields:
            # Its usage is a forecast; the final counts come with the last events.
            inner = _cleaned(bytes(fields["message"]), Seen(), self._cached_tokens)
            fields["message"] = msgspec.Raw(inner)
        return bodies.join(fields)


def _said(raw: bytes) -> list[Choice]:
    """What an event of a stream adds to the answer."""
    name, data = parts(raw)
    if name not in (b"content_block_delta", b"content_block_start", b"message_delta"):
        return []
    found = _events.decode(data)
    delta, block = found.delta, found.content_block
    if block is not None:
        call = block.id if block.type == "tool_use" else None
        return [Choice.of(block.text or "", tool_call_id=call)]
    if delta is None:
        return []
    return [
        Choice.of(
            delta.text or "",
            reasoning=delta.type in ("thinking_delta", "signature_delta"),
            tools=delta.type == "input_json_delta",
            finish=delta.stop_reason,
        )
    ]


def as_stream(body: bytes) -> bytes:
    """A whole message as a stream. Raises msgspec.DecodeError."""
    message = msgspec.json.decode(body, type=dict[str, Any])
    content, usage = message.pop("content", []), message.get("usage")
    stop = {name: message.pop(name, None) for name in ("stop_reason", "stop_sequence")}
    began = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": began}]
    for index, block in enumerate(content):
        empty, deltas = _opened(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": stop, "usage": usage}, {"type": "message_stop"}]
    return b"".join(event(each["type"], msgspec.json.encode(each)) for each in events)


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The event that opens a block, and the events that add its content."""
    kind = block.get("type")
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text")}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block.get("thinking")}]
        if "signature" in block:
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {"type": kind, "thinking": ""}, deltas
    if kind == "tool_use":
        arguments = msgspec.json.encode(block.get("input") or {}).decode()
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    return block, []
