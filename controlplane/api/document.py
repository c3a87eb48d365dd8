"""Puts the endpoints that engines serve into the OpenAPI document: FastAPI routes none of them."""

from typing import Any

from fastapi import FastAPI

from controlplane.dialects.endpoints import ENDPOINTS, Endpoint
from controlplane.dialects.schemas import AnthropicErrorAnswer, ErrorAnswer
from controlplane.errors import ANTHROPIC, no_such_response

_STATUSES = (400, 401, 404, 408, 413, 415, 429, 431, 500, 502, 503, 504)


def document(app: FastAPI) -> None:
    for endpoint in ENDPOINTS:
        error = AnthropicErrorAnswer if endpoint.dialect.errors is ANTHROPIC else ErrorAnswer
        errors: dict[int | str, dict[str, Any]] = {status: {"model": error} for status in _STATUSES}
        app.add_api_route(
            endpoint.path,
            _never_called(endpoint),
            methods=[endpoint.method],
            tags=["engines"],
            response_model=endpoint.answer,
            responses=errors,
        )


def _never_called(endpoint: Endpoint) -> Any:
    async def with_body(body: Any) -> None:
        raise AssertionError("this path is served before FastAPI sees it")

    async def of_response(response_id: str) -> None:
        raise no_such_response(response_id, "response_id")  # it is no id that an engine would have given

    if endpoint.request is None:
        of_response.__name__ = endpoint.dialect.operation
        return of_response
    with_body.__annotations__ = {"body": endpoint.request, "return": None}
    with_body.__name__ = endpoint.request.__name__
    return with_body
