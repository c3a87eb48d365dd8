"""Errors that clients get, in the shape of the API that they speak."""

from typing import Any, Protocol

import msgspec

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Messages, of parsers and engines too, may hold what the client sent, and that may be long.
_MESSAGE_CHARS = 2000
_NAME_CHARS = 200


class ApiError(Exception):
    """What a client gets: an HTTP status and an error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = clipped(message, _MESSAGE_CHARS)
        self.param = param and clipped(param, _NAME_CHARS)
        self.code = code and clipped(code, _NAME_CHARS)
        self.retry_after_s = retry_after_s

    @property
    def kind(self) -> str:
        """OpenAI's type of the error."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.retry_after_s:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        return headers


class ErrorShape(Protocol):
    """How one API words its errors."""

    def body(self, error: ApiError) -> bytes:
        """The error as an answer."""

    def event(self, error: ApiError) -> bytes:
        """The error as the last event of a stream that has begun."""


class _OpenAi:
    def body(self, error: ApiError) -> bytes:
        inner = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
        return msgspec.json.encode({"error": inner})

    def event(self, error: ApiError) -> bytes:
        return b"data: " + self.body(error) + b"\n\n"


class _Anthropic:
    def body(self, error: ApiError) -> bytes:
        default = "invalid_request_error" if error.status < 500 else "api_error"
        kind = _ANTHROPIC_TYPES.get(error.status, default)
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})

    def event(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + self.body(error) + b"\n\n"


class _NamedEvents(_OpenAi):
    """OpenAI's Responses, whose events have names. Their documented error event is not wrapped; the SDK
    raises only for a wrapped one, and would take a stream that broke for one that ended."""

    def event(self, error: ApiError) -> bytes:
        inner = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
        flat = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + msgspec.json.encode({**flat, "error": inner}) + b"\n\n"


OPENAI: ErrorShape = _OpenAi()
RESPONSES: ErrorShape = _NamedEvents()
ANTHROPIC: ErrorShape = _Anthropic()


def clipped(text: str, chars: int) -> str:
    """The first `chars` characters of `text`, with its length where it is longer."""
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text)} characters)"


def no_such_model(model: str) -> ApiError:
    """The error for a model that was never served."""
    shown = clipped(model, _NAME_CHARS)
    return ApiError(404, f"The model `{shown}` does not exist.", param="model", code="model_not_found")


def no_such_response(response_id: str, param: str) -> ApiError:
    """The error for a response that no engine stores."""
    shown = clipped(response_id, _NAME_CHARS)
    return ApiError(404, f"Response with id '{shown}' not found.", param=param)


def of_engine(status: int, body: bytes) -> ApiError:
    """An engine's rejection as an error for the client: its status and message, without internals. 501
    becomes 400, since no other engine implements it either.
    """
    status = {405: 404, 501: 400}.get(status, status)
    message, param, code = "", None, None
    try:
        answer: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        answer = None
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        if isinstance(error, dict):
            message = str(error.get("message") or error.get("detail") or "")
            # vLLM names what its parser refused by the place in the HTTP request.
            param = error["param"].removeprefix("body.") if isinstance(error.get("param"), str) else None
            code = error.get("code") if isinstance(error.get("code"), str) else None
    if status == 400 and "context length" in message:
        code = code or "context_length_exceeded"
    return ApiError(
        status, message or f"the engine refused the request with status {status}", param=param, code=code
    )


NO_WORKER = "no worker can serve this model at the moment"
TOO_LONG = "the turn took too long"
STOPPING = "the service is shutting down; please try again"
