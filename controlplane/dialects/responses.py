"""OpenAI's Responses."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from controlplane.dialects import body as bodies
from controlplane.dialects import prompt_size
from controlplane.dialects.base import Generating, Prefilled, Request, Seen, Streaming, Usage
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
    scoped,
    start_of_history,
    usable_kv,
)
from controlplane.dialects.sent_text import Choice, kind_of, kind_with
from controlplane.errors import RESPONSES
from ppd.core import identity
from ppd.core.identity import Message, mark_of

_ONE, _FALSE = msgspec.Raw(b"1"), msgspec.Raw(b"false")
_NOTHING = (b"", b"null", b"[]")
# Events that an engine sends before it makes the first token.
_EARLY = frozenset({b"response.created", b"response.queued", b"response.in_progress"})
_NAMES = re.compile(rb"^event: ([^\n]*)", re.MULTILINE)
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')
_OWN_TOOLS = frozenset({"function", "custom", "namespace"})  # which the client runs


class _Tool(msgspec.Struct):
    type: str = ""


class _Body(msgspec.Struct):
    model: str = ""
    input: msgspec.Raw = msgspec.Raw()
    instructions: str | None = None
    tools: list[_Tool] | None = None
    stream: bool | None = None
    max_output_tokens: Count | None = None
    background: bool | None = None
    store: bool | None = None
    truncation: str | None = None
    previous_response_id: str | None = None
    previous_input_messages: msgspec.Raw = msgspec.Raw()
    conversation: str | dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None


_decoder = msgspec.json.Decoder(_Body, strict=False)
_inputs = msgspec.json.Decoder(str | Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_MESSAGES)])


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None

    def usage(self) -> Usage:
        details = self.input_tokens_details
        return Usage.of(self.input_tokens, self.output_tokens, details.cached_tokens if details else None)


class _Part(msgspec.Struct):
    text: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None
    call_id: str | None = None


class _Answer(msgspec.Struct):
    id: str = ""
    status: str | None = None
    output: list[_Item] = []
    usage: _Usage | None = None
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct):
    delta: str | None = None
    item: _Item | None = None


_answers = msgspec.json.Decoder(_Answer)
_usages = msgspec.json.Decoder(_Usage)
_events = msgspec.json.Decoder(_Event)


class ResponseReader(Streaming):
    """Responses as engines send them, new ones and stored ones."""

    errors = RESPONSES
    not_found_is_final = True

    def whole(self, body: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
        return _cleaned(body, seen, cached_tokens)

    def watch(self, request: Request, cached_tokens: int | None) -> EventWatch:
        return _Watch(_said, cached_tokens)

    def response_id(self, data: bytes) -> str:
        found = _RESPONSE_ID.search(data[:4096])
        return found[1].decode() if found else ""

    def begun(self, data: bytes) -> bool:
        return any(name not in _EARLY for name in _NAMES.findall(data))

    def first_error(self, data: bytes) -> tuple[bytes, Any] | None:
        for raw in data.split(b"\n\n"):
            name, payload = parts(raw)
            if name in (b"error", b"response.failed"):
                return payload, None
            if name not in _EARLY:
                break
        return None


class Responses(ResponseReader, Generating):
    """`/v1/responses`."""

    operation = "chat"

    def parse(
        self, data: bytes, headers: Mapping[bytes, bytes], prefixes: Prefixes, caller: str = ""
    ) -> Request:
        fields, parsed = read(data, _decoder)
        own_id = explicit_id(headers, parsed.conversation, caller)
        drop_internal(fields)
        messages = history(parsed.instructions, bytes(parsed.input))
        tools = bytes(fields.get("tools", b""))
        known = b"" if tools in _NOTHING else tools
        start = start_of_history(parsed.model, known, parsed.cache_salt, own_id)
        return Request(
            dialect=self,
            fields=fields,
            model=parsed.model,
            size=prompt_size.of_messages(messages).plus(prompt_size.of_tools(tools)),
            messages=messages,
            keys=identity.history_keys(messages, start),
            explicit_id=own_id,
            cache_key=scoped(parsed.prompt_cache_key, caller),
            stream=bool(parsed.stream),
            limit_tokens=parsed.max_output_tokens,
            one_engine=_one_engine(parsed),
            previous=parsed.previous_response_id or "",
            keeps=parsed.store is not False,
        )

    def hold_to(self, request: Request, max_tokens: int) -> None:
        asked = request.limit_tokens
        request.limit_tokens = hold(request.fields, "max_output_tokens", asked, max_tokens, max_tokens)

    def one_token(self, fields: Fields) -> None:
        fields.pop("stream", None)
        fields["max_output_tokens"] = _ONE
        fields["store"] = _FALSE  # the answer is D's to keep

    def prefilled(self, body: bytes) -> Prefilled:
        answer = _answers.decode(body)
        usage = (answer.usage or _Usage()).usage()
        kv = usable_kv(answer.kv_transfer_params)
        ended = answer.status == "completed"
        return Prefilled(body, kv, kv is None and ended, usage.prompt_tokens, usage.cached_tokens)

    def as_stream(self, body: bytes, request: Request) -> bytes:
        return as_stream(body)


def _one_engine(parsed: _Body) -> bool:
    """Whether the turn cannot be handed from P to D: only the engine that keeps a response can continue it, a
    tool of the engine's makes several prompts of one request, and truncation depends on the output limit."""
    return bool(
        parsed.background
        or parsed.previous_response_id
        or parsed.truncation == "auto"
        or bytes(parsed.previous_input_messages) not in _NOTHING
        or any(tool.type not in _OWN_TOOLS for tool in parsed.tools or ())
    )


def history(instructions: str | None, raw: bytes) -> list[Message]:
    """The chat that engines make of a request, as far as identity needs it; empty where it cannot be read, so
    that the engine is the judge."""
    found = [Message("system", instructions)] if instructions else []
    try:
        items = _inputs.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    if isinstance(items, str):
        return [*found, Message("user", items)]
    for item in items:
        _convert(item, found)
    return found


def _convert(item: dict[str, Any], found: list[Message]) -> None:
    kind = item.get("type") or "message"
    if kind == "reasoning":
        return
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments", item.get("input"))
        function = {"name": item.get("name"), "arguments": arguments}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        answer = _answer_so_far(found)
        answer.tool_calls = [*(answer.tool_calls or ()), call]
    elif kind.endswith("_call_output"):
        output = item.get("output")
        text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
        found.append(Message("tool", text, tool_call_id=str(item.get("call_id") or "")))
    elif kind == "message":
        role, content = str(item.get("role") or ""), _content(item.get("content"))
        if role == "assistant" and found and found[-1].role == role and found[-1].content is None:
            found[-1].content = content
        else:
            found.append(Message(role, content))
    else:
        found.append(Message(str(kind), msgspec.json.encode(item).decode()))


def _answer_so_far(found: list[Message]) -> Message:
    """An answer's text and its calls of tools are items of their own; in a chat they are one message."""
    if not found or found[-1].role != "assistant":
        found.append(Message("assistant"))
    return found[-1]


def _content(content: Any) -> str | list[Any] | None:
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    listed = [
        {"type": "text", "text": str(part["text"])} if isinstance(part, dict) and "text" in part else part
        for part in content
    ]
    if len(listed) == 1 and isinstance(listed[0], dict) and listed[0].get("type") == "text":
        return str(listed[0]["text"])
    return listed


def _cleaned(raw: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
    """A response without the engine's internals."""
    fields = bodies.split(raw)
    answer = _answers.decode(raw)
    for name in bodies.INTERNALS:
        fields.pop(name, None)
    seen.response_id = answer.id
    if answer.usage is not None:
        seen.usage = answer.usage.usage()
        thoughts = [item.type == "reasoning" for item in answer.output]
        said = [item for item, thought in zip(answer.output, thoughts, strict=True) if not thought]
        text = "".join(part.text or "" for item in said for part in item.content or ())
        call = next((item.call_id or "" for item in said if item.call_id), "")
        seen.mark, seen.kind = mark_of(text, call), kind_of(text, kind_with(any(thoughts), bool(call)))
        if cached_tokens is not None and cached_tokens != seen.usage.cached_tokens:
            fields["usage"] = _reported(bytes(fields["usage"]), max(0, cached_tokens))
    return bodies.join(fields)


def _reported(raw: bytes, cached_tokens: int) -> msgspec.Raw:
    """The engine's usage with what was cached before the turn."""
    fields = bodies.split(raw)
    details = bodies.split(bytes(fields.get("input_tokens_details") or b"{}"))
    details["cached_tokens"] = bodies.raw(cached_tokens)
    if "cached_tokens_per_turn" in details:
        details["cached_tokens_per_turn"] = bodies.raw([cached_tokens])
    fields["input_tokens_details"] = msgspec.Raw(bodies.join(details))
    return msgspec.Raw(bodies.join(fields))


class _Watch(EventWatch):
    markers = (b'"response":',)
    last_events = (b"response.completed", b"response.incomplete", b"response.failed", b"response.cancelled")

    def clean(self, name: bytes, data: bytes) -> bytes:
        fields = bodies.split(data)
        if "response" in fields:
            inner = _cleaned(bytes(fields["response"]), self.seen, self._cached_tokens)
            fields["response"] = msgspec.Raw(inner)
        return bodies.join(fields)


def _said(raw: bytes) -> list[Choice]:
    """What an event of a stream adds to the answer."""
    name, data = parts(raw)
    if name == b"response.output_text.delta":
        return [Choice.of(_events.decode(data).delta or "")]
    if name == b"response.output_item.added":
        item = _events.decode(data).item
        return [Choice.of("", tool_call_id=item.call_id)] if item is not None and item.call_id else []
    if name.endswith(b".delta"):
        thought = name.startswith(b"response.reasoning")
        return [Choice.of("", reasoning=thought, tools=not thought)]
    return [Choice.of("", finish="stop")] if name == b"response.completed" else []


def as_stream(body: bytes) -> bytes:
    """A whole response as a stream. Raises msgspec.DecodeError."""
    response = msgspec.json.decode(body, type=dict[str, Any])
    began = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": began},
        {"type": "response.in_progress", "response": began},
    ]
    for index, item in enumerate(response.get("output") or []):
        events += _item_events(index, item)
    events.append({"type": "response.completed", "response": response})
    return b"".join(
        event(each["type"], msgspec.json.encode({**each, "sequence_number": number}))
        for number, each in enumerate(events)
    )


def _item_events(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    at = {"output_index": index, "item_id": item.get("id")}
    added = {**item, "status": "in_progress"}
    if item.get("type") == "message":
        added["content"] = []
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": index, "item": added},
    ]
    for number, part in enumerate(item.get("content") or [] if item.get("type") == "message" else []):
        here, text = {**at, "content_index": number}, part.get("text", "")
        events += [
            {"type": "response.content_part.added", **here, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **here, "delta": text, "logprobs": []},
            {"type": "response.output_text.done", **here, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **here, "part": part},
        ]
    if item.get("type") == "function_call":
        arguments = item.get("arguments", "")
        events += [
            {"type": "response.function_call_arguments.delta", **at, "delta": arguments},
            {"type": "response.function_call_arguments.done", **at, "arguments": arguments},
        ]
    events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return events
