"""The two requests of a KV hand-off: P's and then D's."""

from typing import Any

import msgspec

from controlplane.dialects import body as bodies
from controlplane.dialects.base import Request
from controlplane.dialects.body import Fields
from ppd.core.names import KV_HOLD, KV_RELEASE, KV_REQUEST_ID, KV_TRACEPARENT

_FOR_PREFILL = '{"do_remote_decode":true,"do_remote_prefill":false,"%s":"%s"}'
_FREE_MODEL = "released-before-decode"


def prefill_body(
    request: Request, pullback: dict[str, Any] | None = None, traceparent: str = "", request_id: str = ""
) -> bytes:
    """P's request: one token, not streamed, marked for decoding elsewhere.

    `pullback`: D's parameters, with which P pulls the conversation's KV before it prefills.
    """
    fields: Fields = dict(request.fields)
    request.generating.one_token(fields)
    fields["kv_transfer_params"] = (
        bodies.raw({**pullback, **_about_turn(traceparent, request_id)})
        if pullback
        else msgspec.Raw((_FOR_PREFILL % (KV_REQUEST_ID, request_id)).encode())
    )
    return bodies.join(fields)


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
    """D's request: the client's fields, P's KV parameters, the trace for the connector's span, and usage
    reporting switched on.

    `hold`: D keeps the turn's KV for a pull-back.
    """
    fields = dict(request.fields)
    if request.dialect.generates:
        fields |= request.generating.for_decode(request)
    if kv is not None:
        about = _about_turn(traceparent, request_id)
        if hold:
            about[KV_HOLD] = True
        fields["kv_transfer_params"] = msgspec.Raw(bodies.extended(kv, **about))
    elif hold:
        fields["kv_transfer_params"] = bodies.raw({KV_REQUEST_ID: request_id, KV_HOLD: True})
    return bodies.join(fields)


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
