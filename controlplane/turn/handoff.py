"""The KV hand-off as two verbs: the request that P gets, and the request that D gets after it."""

from typing import Any, NamedTuple

import msgspec

from controlplane.errors import ApiError
from controlplane.turn import body as bodies
from controlplane.turn.body import Fields
from controlplane.turn.parse import Request
from ppd.core.names import KV_HOLD, KV_RELEASE, KV_REQUEST_ID, KV_TRACEPARENT

_ONE = msgspec.Raw(b"1")
_FOR_PREFILL = '{"do_remote_decode":true,"do_remote_prefill":false,"%s":"%s"}'
_LIMITS = ("max_tokens", "max_completion_tokens")
_USAGE_ON = msgspec.Raw(b'{"include_usage":true}')
_FREE_MODEL = "released-before-decode"


class Prefilled(NamedTuple):
    """P's answer: the KV parameters for D, or P's own complete answer where its one token ended it."""

    body: bytes
    kv: bytes | None  # as P wrote them
    finished: bool
    prompt_tokens: int
    cached_tokens: int  # -1 = P does not say


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's usage object, as far as it is read."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int:
        """-1 where the engine does not say."""
        details = self.prompt_tokens_details
        return -1 if details is None or details.cached_tokens is None else details.cached_tokens


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Kv(msgspec.Struct):
    do_remote_prefill: bool | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    kv_transfer_params: msgspec.Raw = msgspec.Raw()


_answers = msgspec.json.Decoder(_Answer)
_params = msgspec.json.Decoder(_Kv | None)


def prefill_body(
    request: Request, pullback: dict[str, Any] | None = None, traceparent: str = "", request_id: str = ""
) -> bytes:
    """What P gets: one token, not streamed, and the word that somebody else decodes.

    `pullback`: D's parameters, by which P pulls the conversation's KV before it prefills.
    """
    fields: Fields = dict(request.fields)
    for name in ("stream", "stream_options", "n", "best_of"):
        fields.pop(name, None)
    fields["max_tokens"] = _ONE
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = _ONE
    if "min_tokens" in fields:
        fields["min_tokens"] = _capped(fields["min_tokens"])
    fields["kv_transfer_params"] = (
        bodies.raw({**pullback, **_about_turn(traceparent, request_id)})
        if pullback
        else msgspec.Raw((_FOR_PREFILL % (KV_REQUEST_ID, request_id)).encode())
    )
    return bodies.join(fields)


def _capped(value: msgspec.Raw) -> msgspec.Raw:
    """At most 1; what is no positive number stays for P to judge."""
    try:
        number = msgspec.json.decode(value, type=float)
    except msgspec.DecodeError:
        return value
    return _ONE if number > 1 else value


def read_prefilled(body: bytes) -> Prefilled:
    """P's answer. Raises msgspec.DecodeError if it is none."""
    answer = _answers.decode(body)
    usage = answer.usage or Usage()
    kv = bytes(answer.kv_transfer_params) or None
    if kv is not None:
        params = _params.decode(kv)
        if params is None or not params.do_remote_prefill:
            kv = None
    finished = kv is None and bool(answer.choices) and answer.choices[0].finish_reason not in (None, "length")
    return Prefilled(body, kv, finished, usage.prompt_tokens, usage.cached_tokens)


def _about_turn(traceparent: str, request_id: str) -> dict[str, Any]:
    """What the connector needs for its span and its reports."""
    about: dict[str, Any] = {KV_REQUEST_ID: request_id}
    if traceparent:
        about[KV_TRACEPARENT] = traceparent
    return about


def decode_body(
    request: Request,
    kv: bytes | None = None,
    traceparent: str = "",
    request_id: str = "",
    hold: bool = False,
) -> bytes:
    """What D gets: the client's request, P's parameters with the trace for the connector's span, and the
    wish for usage. `hold`: D shall keep the turn's KV for a pull-back."""
    fields: Fields = dict(request.fields)
    if request.stream and not request.wants_usage:
        fields["stream_options"] = _with_usage(fields.get("stream_options"))
    if kv is not None:
        about = _about_turn(traceparent, request_id)
        if hold:
            about[KV_HOLD] = True
        fields["kv_transfer_params"] = msgspec.Raw(bodies.extended(kv, **about))
    elif hold:
        fields["kv_transfer_params"] = bodies.raw({KV_REQUEST_ID: request_id, KV_HOLD: True})
    return bodies.join(fields)


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


def release_body(kv: bytes) -> bytes:
    """A request that an engine must refuse before it admits it (its model does not exist): vLLM then hands
    `kv` to its connector. That of a D tells P to free the blocks that `kv` names."""
    fields = {
        "model": _FREE_MODEL,
        "messages": [{"role": "user", "content": "."}],
        "max_tokens": 1,
        "kv_transfer_params": msgspec.Raw(kv),
    }
    return msgspec.json.encode(fields)


def unwanted_body(request_id: str) -> bytes:
    """For a P that `releases`: the blocks of this turn's prefill, be it finished or not, are not wanted."""
    return release_body(msgspec.json.encode({"do_remote_prefill": True, KV_RELEASE: request_id}))
