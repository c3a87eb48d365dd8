"""Puts the endpoints that engines serve into the OpenAPI document: FastAPI routes none of them."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from controlplane.dialects.endpoints import ENDPOINTS
from controlplane.dialects.schemas import AnthropicErrorAnswer, ErrorAnswer
from controlplane.errors import ANTHROPIC

_STATUSES = (400, 401, 404, 408, 413, 415, 429, 431, 500, 502, 503, 504)


def document(app: FastAPI) -> None:
    for endpoint in ENDPOINTS.values():
        error = AnthropicErrorAnswer if endpoint.dialect.errors is ANTHROPIC else ErrorAnswer
        errors: dict[int | str, dict[str, Any]] = {status: {"model": error} for status in _STATUSES}
        route = app.post(endpoint.path, tags=["engines"], response_model=endpoint.answer, responses=errors)
        route(_never_called(endpoint.request))


def _never_called(model: type[BaseModel]) -> Any:
    async def endpoint(body: Any) -> None:
        raise AssertionError("this path is served before FastAPI sees it")

    endpoint.__annotations__ = {"body": model, "return": None}
    endpoint.__name__ = model.__name__
    return endpoint
