"""The OpenAPI schemas of the endpoints that engines serve."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Open(BaseModel):
    """Further fields pass through to the engine."""

    model_config = ConfigDict(extra="allow")


class StreamOptions(Open):
    include_usage: bool | None = Field(None, description="send a last chunk with usage and no choices")


class Message(Open):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class _Common(Open):
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
    user: str | None = Field(None, description="goes to the engine; routing does not heed it")
    prompt_cache_key: str | None = Field(
        None, description="requests that begin alike share it: they prefer the same engine, load permitting"
    )


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


class ResponsesRequest(Open):
    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=0)
    previous_response_id: str | None = Field(None, description="goes to the engine that keeps that response")
    tools: list[dict[str, Any]] | None = None


class MessagesRequest(Open):
    model: str
    messages: list[Message]
    max_tokens: int = Field(ge=0)
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None


class CountTokensRequest(Open):
    model: str
    messages: list[Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class TokenizeRequest(Open):
    model: str
    prompt: str | None = None
    messages: list[Message] | None = None


class DetokenizeRequest(Open):
    model: str
    tokens: list[int]


class Error(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    error: Error


class AnthropicError(BaseModel):
    type: str
    message: str


class AnthropicErrorAnswer(BaseModel):
    type: str = "error"
    error: AnthropicError


class Usage(Open):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Answer(Open):
    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage | None = None
