"""The endpoints that engines serve: one table, from which requests are parsed, routed and documented."""

from typing import NamedTuple

from pydantic import BaseModel

from controlplane.dialects import schemas
from controlplane.dialects.base import Dialect
from controlplane.dialects.messages import Messages
from controlplane.dialects.openai import Chat, Completions
from controlplane.dialects.responses import Responses
from controlplane.dialects.utilities import Utility
from controlplane.errors import ANTHROPIC, OPENAI, ErrorShape


class Endpoint(NamedTuple):
    """What is posted to `path`, here and at the engines."""

    path: str
    dialect: Dialect
    request: type[BaseModel]  # as it is documented
    answer: type[BaseModel] = schemas.Open


ENDPOINTS = {
    each.path: each
    for each in (
        Endpoint("/v1/chat/completions", Chat(), schemas.ChatRequest, schemas.Answer),
        Endpoint("/v1/completions", Completions(), schemas.CompletionRequest, schemas.Answer),
        Endpoint("/v1/responses", Responses(), schemas.ResponsesRequest),
        Endpoint("/v1/messages", Messages(), schemas.MessagesRequest),
        Endpoint("/v1/messages/count_tokens", Utility("count_tokens", ANTHROPIC), schemas.CountTokensRequest),
        Endpoint("/tokenize", Utility("tokenize"), schemas.TokenizeRequest),
        Endpoint("/detokenize", Utility("detokenize"), schemas.DetokenizeRequest),
    )
}


def shape_of(path: str) -> ErrorShape:
    """How errors look to the clients of a path, be it served or not."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is not None:
        return endpoint.dialect.errors
    return ANTHROPIC if path.startswith("/v1/messages/") else OPENAI
