"""OpenAI's chat completions and completions."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from controlplane.dialects import body as bodies
from controlplane.dialects import openai_continue, prompt_size
from controlplane.dialects.base import Generating, Prefilled, Request, Seen, Usage
from controlplane.dialects.body import Fields
from controlplane.dialects.body_prefix import Prefixes, Rest
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
from controlplane.dialects.openai_stream import DONE, StreamWatch, as_stream, whole_answer
from controlplane.dialects.sent_text import Sent
from controlplane.errors import ApiError
from ppd.core import identity
from ppd.core.identity import Message

# Fields that engines pass over in silence, so that the answer would not be what was asked for; and why.
_UNSERVED = {
    "functions": "functions are not supported: send tools",
    "function_call": "function_call is not supported: send tools and tool_choice",
    "web_search_options": "web search is not supported",
    "audio": "audio output is not supported",
    **{
        f"guided_{kind}": f"guided_{kind} is not read any more: send structured_outputs"
        for kind in ("json", "regex", "choice", "grammar")
    },
}
_UNASKED = frozenset({b"null", b"[]", b'"none"'})  # values by which a client asks for nothing
_COMPLETION_TOKENS = 16  # of a completion that names no limit, by OpenAI's and vLLM's rule
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_ONE = msgspec.Raw(b"1")
_USAGE_ON = msgspec.Raw(b'{"include_usage":true}')
_FIRST_ERROR = b'data: {"error"'


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct):
    """The fields that are read, of both kinds of request."""

    model: str = ""
    messages: Annotated[list[Message], msgspec.Meta(max_length=MAX_MESSAGES)] | None = None
    prompt: str | list[Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Count | None = None
    n: Count | None = None
    best_of: Count | None = None
    echo: bool | None = None
    prompt_logprobs: int | bool | None = None
    use_beam_search: bool | None = None
    prompt_embeds: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    cache_salt: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt_cache_key: str | None = None


_decoder = msgspec.json.Decoder(_Body, strict=False)


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


_answers = msgspec.json.Decoder(_Answer)


class OpenAiDialect(Generating):
    """What the two endpoints have in common."""

    chat: bool

    def parse(
        self, data: bytes, headers: Mapping[bytes, bytes], prefixes: Prefixes, caller: str = ""
    ) -> Request:
        rest = prefixes.find(data) if self.chat else None
        if rest is not None:
            rest, fields, parsed = _read_rest(rest, data)
        else:
            fields, parsed = read(data, _decoder)
        own_id = explicit_id(headers, parsed.conversation, caller)
        start = start_of_history(parsed.model, bytes(parsed.tools), parsed.cache_salt, own_id)
        if rest is not None and rest.known.keys[0] != start:
            rest = None
            fields, parsed = read(data, _decoder)
        new = _messages(parsed, self.chat, len(rest.known.messages) if rest else 0)
        one_engine = _one_engine(parsed)
        _check_limits(parsed, one_engine)
        drop_internal(fields)
        _refuse_unserved(fields)
        size = prompt_size.of_messages(new)
        if rest is None:
            messages, keys = new, identity.history_keys(new, start)
            if self.chat:
                prefixes.keep(data, fields, new, keys, size)
        else:
            messages = rest.known.messages + new
            keys = rest.known.keys[:-1] + identity.history_keys(new, rest.known.keys[-1])
            size = size.plus(rest.known.size)
            prefixes.keep_on(data, rest, fields, new, keys, size)
        size = size.plus(prompt_size.of_tools(bytes(parsed.tools)))
        limit = parsed.max_completion_tokens
        return Request(
            dialect=self,
            fields=fields,
            model=parsed.model,
            size=size if self.chat else size.plus(prompt_size.of_prompt(parsed.prompt)),
            messages=messages,
            keys=keys,
            explicit_id=own_id,
            cache_key=scoped(parsed.prompt_cache_key, caller),
            stream=bool(parsed.stream),
            wants_usage=bool(parsed.stream_options and parsed.stream_options.include_usage),
            n=parsed.n or 1,
            limit_tokens=parsed.max_tokens if limit is None else limit,
            one_engine=one_engine,
        )

    def hold_to(self, request: Request, max_tokens: int) -> None:
        default = max_tokens if self.chat else min(max_tokens, _COMPLETION_TOKENS)
        request.limit_tokens = hold(request.fields, "max_tokens", request.limit_tokens, max_tokens, default)

    def one_token(self, fields: Fields) -> None:
        for name in ("stream", "stream_options", "n", "best_of"):
            fields.pop(name, None)
        fields["max_tokens"] = _ONE
        if "max_completion_tokens" in fields:
            fields["max_completion_tokens"] = _ONE
        if "min_tokens" in fields:
            fields["min_tokens"] = _capped(fields["min_tokens"])

    def for_decode(self, request: Request) -> Fields:
        if not request.stream or request.wants_usage:
            return {}
        return {"stream_options": _with_usage(request.fields.get("stream_options"))}

    def prefilled(self, body: bytes) -> Prefilled:
        answer = _answers.decode(body)
        usage = answer.usage or Usage()
        kv = usable_kv(answer.kv_transfer_params)
        ended = bool(answer.choices) and answer.choices[0].finish_reason not in (None, "length")
        return Prefilled(body, kv, kv is None and ended, usage.prompt_tokens, usage.cached_tokens)

    def whole(self, body: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
        return whole_answer(body, seen, cached_tokens)

    def watch(self, request: Request, cached_tokens: int | None) -> StreamWatch:
        return StreamWatch(request.wants_usage, request.n == 1, cached_tokens)

    def as_stream(self, body: bytes, request: Request) -> bytes:
        return as_stream(body, self.chat, request.wants_usage)

    def first_error(self, data: bytes) -> tuple[bytes, Any] | None:
        if not data.startswith(_FIRST_ERROR):
            return None
        event = data[6:].split(b"\n\n")[0]
        try:
            return event, msgspec.json.decode(event)["error"].get("code")
        except (msgspec.DecodeError, KeyError, AttributeError, TypeError):
            return event, None

    def continuation(self, request: Request, sent: Sent) -> Request | None:
        return openai_continue.continuation(request, sent, self.chat)

    def last_event(self) -> bytes:
        return DONE


class Chat(OpenAiDialect):
    """`/v1/chat/completions`."""

    operation = "chat"
    chat = True


class Completions(OpenAiDialect):
    """`/v1/completions`."""

    operation = "text_completion"
    chat = False


def _capped(value: msgspec.Raw) -> msgspec.Raw:
    """At most 1; what is no positive number stays for P to judge."""
    try:
        number = msgspec.json.decode(value, type=float)
    except msgspec.DecodeError:
        return value
    return _ONE if number > 1 else value


def _with_usage(options: msgspec.Raw | None) -> msgspec.Raw:
    if options is None or bytes(options) == b"null":
        return _USAGE_ON
    try:
        inner = bodies.split(bytes(options))
    except msgspec.DecodeError:
        raise ApiError(400, "stream_options must be an object", param="stream_options") from None
    inner["include_usage"] = msgspec.Raw(b"true")
    inner.pop("continuous_usage_stats", None)  # engines ignore it unless usage is on, which it was not
    return msgspec.Raw(bodies.join(inner))


def _refuse_unserved(fields: bodies.Fields) -> None:
    """Raises ApiError (400)."""
    if not fields.keys().isdisjoint(_UNSERVED):
        for name in fields.keys() & _UNSERVED.keys():
            if bytes(fields[name]) not in _UNASKED:
                raise ApiError(400, _UNSERVED[name], param=name)
    modalities = fields.get("modalities")
    if modalities is not None and b'"audio"' in bytes(modalities):
        raise ApiError(400, _UNSERVED["audio"], param="modalities")


def _read_rest(rest: Rest, data: bytes) -> tuple[Rest | None, bodies.Fields, _Body]:
    """The same, of the messages only those that are new; all of the body where that fails, so that an error
    names the right place. Raises ApiError."""
    try:
        fields, parsed = read(rest.data, _decoder)
        whole = rest.whole(data, fields)
    except ApiError:
        whole = None
    if whole is None:
        return None, *read(data, _decoder)
    fields["messages"] = whole
    return rest, fields, parsed


def _messages(parsed: _Body, chat: bool, known: int) -> list[Message]:
    """The history after `known` messages. A plain prompt has none that could be told apart:
    its turns meet by an explicit id."""
    if chat:
        if not parsed.messages and not known:
            raise ApiError(400, "you must provide at least one message", param="messages")
        for i, message in enumerate(parsed.messages or (), known):
            if message.role not in _ROLES:
                raise ApiError(400, f"unknown role {message.role[:40]!r}", param=f"messages[{i}].role")
        return parsed.messages or []
    if parsed.prompt is None and not parsed.prompt_embeds:
        raise ApiError(400, "you must provide a prompt", param="prompt")
    return []


def _check_limits(parsed: _Body, one_engine: bool) -> None:
    """What P would not see, since its request is cut down to one token of one answer, and what D would refuse
    when P has done its work already."""
    if parsed.stream_options and not parsed.stream:
        raise ApiError(400, "stream_options need `stream: true`", param="stream_options")
    for name, count in (("n", parsed.n), ("best_of", parsed.best_of)):
        if count == 0:
            raise ApiError(400, f"{name} must be at least 1", param=name)
    if one_engine:
        return
    limits = (("max_tokens", parsed.max_tokens), ("max_completion_tokens", parsed.max_completion_tokens))
    for name, limit in limits:
        if limit == 0:
            raise ApiError(400, f"{name} must be at least 1", param=name)
        if limit is not None and limit < (parsed.min_tokens or 0):
            raise ApiError(400, f"min_tokens must not be more than {name}", param="min_tokens")


def _one_engine(parsed: _Body) -> bool:
    """Whether the turn cannot be handed from P to D: D lacks the prompt's hidden states (echo,
    prompt_logprobs), or the hand-off serves a single sequence only."""
    several_prompts = isinstance(parsed.prompt, list) and not all(
        isinstance(part, int) for part in parsed.prompt
    )
    return bool(
        (parsed.n or 1) > 1
        or (parsed.best_of or 1) > 1
        or parsed.echo
        or parsed.use_beam_search
        or (parsed.prompt_logprobs is not None and parsed.prompt_logprobs is not False)
        or parsed.prompt_embeds
        or several_prompts
    )
