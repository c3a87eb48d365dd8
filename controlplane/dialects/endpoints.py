"""The endpoints that engines serve: one table, from which requests are parsed, routed and documented."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel

from controlplane.dialects import schemas
from controlplane.dialects.base import Dialect
from controlplane.dialects.messages import Messages
from controlplane.dialects.openai import Chat, Completions
from controlplane.dialects.responses import Responses
from controlplane.dialects.stored_responses import StoredResponse
from controlplane.dialects.utilities import Utility
from controlplane.errors import ANTHROPIC, OPENAI, RESPONSES, ErrorShape

_RESPONSE = "/v1/responses/{response_id}"
_RESPONSE_PATH = re.compile(r"/v1/responses/([A-Za-z0-9_-]{1,160})(/cancel|/input_items)?")
_QUERY = frozenset(
    ("stream", "starting_after", "include", "include[]", "include_obfuscation", "after", "limit", "order")
)


class Endpoint(NamedTuple):
    """One method of one path, the same here and at the engines. The path may contain a response's id."""

    path: str
    dialect: Dialect
    request: type[BaseModel] | None = None  # the body, as it is documented
    answer: type[BaseModel] = schemas.Open
    method: str = "POST"


ENDPOINTS = (
    Endpoint("/v1/chat/completions", Chat(), schemas.ChatRequest, schemas.Answer),
    Endpoint("/v1/completions", Completions(), schemas.CompletionRequest, schemas.Answer),
    Endpoint("/v1/responses", Responses(), schemas.ResponsesRequest),
    Endpoint("/v1/messages", Messages(), schemas.MessagesRequest),
    Endpoint("/v1/messages/count_tokens", Utility("count_tokens", ANTHROPIC), schemas.CountTokensRequest),
    Endpoint("/tokenize", Utility("tokenize"), schemas.TokenizeRequest),
    Endpoint("/detokenize", Utility("detokenize"), schemas.DetokenizeRequest),
    Endpoint(_RESPONSE, StoredResponse("get_response"), method="GET"),
    Endpoint(_RESPONSE, StoredResponse("delete_response"), method="DELETE"),
    Endpoint(_RESPONSE + "/cancel", StoredResponse("cancel_response")),
    Endpoint(_RESPONSE + "/input_items", StoredResponse("list_input_items"), method="GET"),
)


class Target(NamedTuple):
    """The endpoint that a request is for, and the parts of its path and query."""

    endpoint: Endpoint
    engine_path: bytes  # with its query
    response_id: str = ""  # of a stored response
    stream: bool = False  # as its query says


_SHAPES = {"/v1/messages/": ANTHROPIC, "/v1/responses/": RESPONSES}  # of what lies below an endpoint
_BY_PLACE = {(each.method, each.path): each for each in ENDPOINTS}
_TARGETS = {place: Target(each, each.path.encode()) for place, each in _BY_PLACE.items()}


def find(method: str, path: str, query: bytes) -> Target | None:
    """The endpoint that a request is for; None where no engine serves it."""
    found = _TARGETS.get((method, path))
    if found is not None or not path.startswith("/v1/responses/"):
        return found
    parts = _RESPONSE_PATH.fullmatch(path)
    endpoint = _BY_PLACE.get((method, _RESPONSE + (parts[2] or ""))) if parts else None
    if parts is None or endpoint is None:
        return None
    asked = [(name, value) for name, value in parse_qsl(query.decode("latin-1")) if name in _QUERY]
    stream = dict(asked).get("stream", "").lower() in ("true", "1")
    engine_path = f"{path}?{urlencode(asked)}" if asked else path
    return Target(endpoint, engine_path.encode(), parts[1], stream)


def shape_of(path: str) -> ErrorShape:
    """The error shape that clients of a path expect, whether or not the path is served."""
    endpoint = _BY_PLACE.get(("POST", path))
    if endpoint is not None:
        return endpoint.dialect.errors
    return next((shape for start, shape in _SHAPES.items() if path.startswith(start)), OPENAI)
