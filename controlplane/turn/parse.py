"""Bytes -> request: what the frontend needs of a body, checked once; the rest is the engine's business."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from controlplane.errors import ApiError
from controlplane.turn import body as bodies
from controlplane.turn.body_prefix import Prefixes, Rest
from ppd.core import identity
from ppd.core.identity import Message
from ppd.core.names import H_SESSION

# Fields by which a client could reach into the hand-off or the engines' routing.
INTERNAL_FIELDS = frozenset(
    {
        "kv_transfer_params",
        "ec_transfer_params",
        "request_id",
        "data_parallel_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
    }
)
_FURTHER = "vllm_xargs"
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
_T = TypeVar("_T")
_SESSION = H_SESSION.encode()
MAX_ID_CHARS = 512
MAX_MESSAGES = 65_536  # no model's context has room for more, and hashing them holds up every other stream
_COMPLETION_TOKENS = 16  # of a completion that names no limit, by OpenAI's and vLLM's rule
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


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
    user: str | None = None


_decoder = msgspec.json.Decoder(_Body, strict=False)


class Request:
    """One turn as the client asked for it."""

    __slots__ = (
        "chat",
        "explicit_id",
        "fields",
        "keys",
        "limit_tokens",
        "messages",
        "model",
        "n",
        "one_engine",
        "size_bytes",
        "stream",
        "wants_usage",
    )

    def __init__(
        self, data: bytes, chat: bool, headers: Mapping[bytes, bytes], prefixes: Prefixes | None = None
    ) -> None:
        """`prefixes`: what is known of earlier bodies, and shall be of this one. Raises ApiError."""
        rest = prefixes.find(data) if chat and prefixes is not None else None
        if rest is not None:
            rest, self.fields, parsed = _read_rest(rest, data)
        else:
            self.fields, parsed = read(data, _decoder)
        self.explicit_id = _explicit_id(parsed, headers)
        start = identity.seed(_model(parsed), bytes(parsed.tools), _scope(parsed, self.explicit_id))
        if rest is not None and rest.known.keys[0] != start:
            rest = None
            self.fields, parsed = read(data, _decoder)
        self.size_bytes = len(data)
        self.chat = chat
        self.model = parsed.model
        self.n = parsed.n or 1
        self.stream = bool(parsed.stream)
        self.wants_usage = bool(parsed.stream_options and parsed.stream_options.include_usage)
        limit = parsed.max_completion_tokens
        self.limit_tokens = parsed.max_tokens if limit is None else limit
        new = _messages(parsed, chat, len(rest.known.messages) if rest else 0)
        self.one_engine = _one_engine(parsed)
        _check_limits(parsed, self.one_engine)
        drop_internal(self.fields)
        _refuse_unserved(self.fields)
        if rest is None:
            self.messages, self.keys = new, identity.history_keys(new, start)
            if chat and prefixes is not None:
                prefixes.keep(data, self.fields, new, self.keys)
        else:
            self.messages = rest.known.messages + new
            self.keys = rest.known.keys[:-1] + identity.history_keys(new, rest.known.keys[-1])
            if prefixes is not None:
                prefixes.keep_on(data, rest, self.fields, new, self.keys)

    def hold_to(self, max_tokens: int) -> None:
        """Let the answer have so many tokens at most. Raises ApiError where more are asked for."""
        if self.limit_tokens is None:
            self.limit_tokens = max_tokens if self.chat else min(max_tokens, _COMPLETION_TOKENS)
            self.fields["max_tokens"] = bodies.raw(self.limit_tokens)
        elif self.limit_tokens > max_tokens:
            raise ApiError(400, f"with this key an answer may have {max_tokens} tokens", param="max_tokens")


def drop_internal(fields: bodies.Fields) -> None:
    """Those of vLLM's `vllm_xargs` too, which it takes for the same. Raises ApiError."""
    if not INTERNAL_FIELDS.isdisjoint(fields):
        for name in INTERNAL_FIELDS:
            fields.pop(name, None)
    further = fields.get(_FURTHER)
    if further is not None and bytes(further) != b"null":
        try:
            inner = bodies.split(bytes(further))
        except msgspec.DecodeError:
            raise ApiError(400, f"{_FURTHER} must be an object", param=_FURTHER) from None
        if not INTERNAL_FIELDS.isdisjoint(inner):
            kept = {name: value for name, value in inner.items() if name not in INTERNAL_FIELDS}
            fields[_FURTHER] = msgspec.Raw(bodies.join(kept))


def _refuse_unserved(fields: bodies.Fields) -> None:
    """Raises ApiError (400)."""
    if not fields.keys().isdisjoint(_UNSERVED):
        for name in fields.keys() & _UNSERVED.keys():
            if bytes(fields[name]) not in _UNASKED:
                raise ApiError(400, _UNSERVED[name], param=name)
    modalities = fields.get("modalities")
    if modalities is not None and b'"audio"' in bytes(modalities):
        raise ApiError(400, _UNSERVED["audio"], param="modalities")


def read(data: bytes, decoder: msgspec.json.Decoder[_T]) -> tuple[bodies.Fields, _T]:
    """A body's fields, raw and as the decoder reads them. Raises ApiError (400)."""
    try:
        return bodies.split(data), decoder.decode(data)
    except msgspec.ValidationError as error:
        raise ApiError(400, explain(error), param=param_of(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


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


def _model(parsed: _Body) -> str:
    if not parsed.model:
        raise ApiError(400, "you must provide a model parameter", param="model")
    return parsed.model


def _scope(parsed: _Body, explicit_id: str) -> str:
    return f"{parsed.cache_salt or ''}\n{parsed.user or ''}\n{explicit_id}"


def _messages(parsed: _Body, chat: bool, known: int) -> list[Message]:
    """The history after so many messages that are known. A plain prompt has none that could be told apart:
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


def _explicit_id(parsed: _Body, headers: Mapping[bytes, bytes]) -> str:
    conversation = parsed.conversation
    if isinstance(conversation, dict):
        conversation = str(conversation.get("id") or "")
    found = headers.get(_SESSION, b"").decode("latin-1") or conversation or parsed.prompt_cache_key or ""
    if len(found) > MAX_ID_CHARS:
        raise ApiError(400, f"a conversation's id may have at most {MAX_ID_CHARS} characters")
    return found


def param_of(error: Exception) -> str | None:
    """The field of msgspec's `... - at `$.messages[0].role``."""
    text = str(error)
    at = text.rfind("`$.")
    return text[at + 3 :].rstrip("`") if at >= 0 else None


def explain(error: Exception) -> str:
    """What is wrong, for the client."""
    param = param_of(error)
    what = str(error).split(" - at ")[0]
    return f"{param}: {what}" if param else f"the body is no such request: {what}"
