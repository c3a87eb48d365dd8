"""Reads a request's fields: checks them once, and removes those that a client must not set."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import xxhash

from controlplane.dialects import body as bodies
from controlplane.errors import ApiError
from ppd.core import identity
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
_T = TypeVar("_T")
_SESSION = H_SESSION.encode()
MAX_ID_CHARS = 512
MAX_MESSAGES = 65_536  # more than any context has room for; hashing more would delay every other stream
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


def read(data: bytes, decoder: msgspec.json.Decoder[_T]) -> tuple[bodies.Fields, _T]:
    """A body's fields, raw and decoded. Raises ApiError (400)."""
    try:
        return bodies.split(data), decoder.decode(data)
    except msgspec.ValidationError as error:
        raise ApiError(400, explain(error), param=param_of(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None


def drop_internal(fields: bodies.Fields) -> None:
    """Remove fields that a client must not set, from `vllm_xargs` too, which vLLM merges into the request.
    Raises ApiError.
    """
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


def explicit_id(
    headers: Mapping[bytes, bytes], conversation: str | dict[str, Any] | None, caller: str
) -> str:
    """The client's own id of the conversation: from the header, otherwise from the body. Raises ApiError."""
    if isinstance(conversation, dict):
        conversation = str(conversation.get("id") or "")
    return scoped(headers.get(_SESSION, b"").decode("latin-1") or conversation, caller)


def scoped(name: str | None, caller: str) -> str:
    """A name given by a client, made distinct for each API key. Raises ApiError."""
    if not name:
        return ""
    if len(name) > MAX_ID_CHARS:
        raise ApiError(400, f"a conversation's id may have at most {MAX_ID_CHARS} characters")
    return f"{xxhash.xxh3_64_hexdigest(caller.encode())}:{name}" if caller else name


def model_of(name: str) -> str:
    """Raises ApiError where none is named."""
    if not name:
        raise ApiError(400, "you must provide a model parameter", param="model")
    return name


class _Kv(msgspec.Struct):
    do_remote_prefill: bool | None = None


_params = msgspec.json.Decoder(_Kv | None)


def usable_kv(raw: msgspec.Raw) -> bytes | None:
    """KV parameters by which D can read what P computed. Raises msgspec.DecodeError."""
    kv = bytes(raw)
    params = _params.decode(kv) if kv else None
    return kv if params is not None and params.do_remote_prefill else None


def hold(fields: bodies.Fields, name: str, asked: int | None, most: int, default: int) -> int:
    """Limit the field that bounds an answer's length; returns the resulting limit. Raises ApiError (400)."""
    if asked is None:
        fields[name] = bodies.raw(default)
        return default
    if asked > most:
        raise ApiError(400, f"with this key an answer may have {most} tokens", param=name)
    return asked


def param_of(error: Exception) -> str | None:
    """The field that msgspec's message names by its path, such as "at `$.messages[0].role`"."""
    text = str(error)
    at = text.rfind("`$.")
    return text[at + 3 :].rstrip("`") if at >= 0 else None


def explain(error: Exception) -> str:
    """What is wrong, for the client."""
    param = param_of(error)
    what = str(error).split(" - at ")[0]
    return f"{param}: {what}" if param else f"the body is no such request: {what}"


def start_of_history(model: str, tools: bytes, cache_salt: str | None, own_id: str) -> int:
    """The key of the empty history. All APIs share this rule, so that a conversation may change its API.
    Raises ApiError for a model without a name.
    """
    return identity.seed(model_of(model), tools, f"{cache_salt or ''}\n{own_id}")
