"""The OpenAPI schemas of the endpoints that the HTTP server hands to `controlplane.turn`, not to FastAPI."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    """Further fields pass through to the engine."""

    model_config = ConfigDict(extra="allow")


class StreamOptions(_Open):
    include_usage: bool | None = Field(None, description="send a last chunk with usage and no choices")


class Message(_Open):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class _Common(_Open):
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = Field(None, description="keeps conversations of different users apart")
    prompt_cache_key: str | None = Field(None, description="names the conversation")


class ChatRequest(_Common):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(_Common):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = None
    echo: bool | None = None


class ResponsesRequest(_Open):
    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=0)
    previous_response_id: str | None = Field(None, description="goes to the engine that keeps that response")
    tools: list[dict[str, Any]] | None = None


class MessagesRequest(_Open):
    model: str
    messages: list[Message]
    max_tokens: int = Field(ge=0)
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None


class TokenizeRequest(_Open):
    model: str
    prompt: str | None = None
    messages: list[Message] | None = None


class DetokenizeRequest(_Open):
    model: str
    tokens: list[int]


class Error(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    error: Error


class Usage(_Open):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Answer(_Open):
    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage | None = None


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 404, 408, 413, 415, 429, 431, 500, 502, 503, 504)
}
_DOCUMENTED: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": MessagesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


_ANSWERS: dict[str, type[BaseModel]] = {"/v1/chat/completions": Answer, "/v1/completions": Answer}


def document(app: FastAPI) -> None:
    """Put them into the OpenAPI document. They are served before FastAPI sees them."""

    async def served_before(body: Any) -> None:
        raise AssertionError("this path is served before FastAPI sees it")

    for path, model in _DOCUMENTED.items():
        app.post(path, tags=["openai"], response_model=_ANSWERS.get(path, _Open), responses=_ERRORS)(
            _typed(served_before, model)
        )


def _typed(handler: Any, model: type[BaseModel]) -> Any:
    async def endpoint(body: Any) -> None:
        await handler(body)

    endpoint.__annotations__ = {"body": model, "return": None}
    endpoint.__name__ = model.__name__
    return endpoint
