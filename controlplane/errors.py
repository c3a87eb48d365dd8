"""Errors in OpenAI's shape."""

from typing import Any

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
# Messages, of parsers and engines too, may hold what the client sent, and that may be long.
_MESSAGE_CHARS = 2000
_NAME_CHARS = 200


class ApiError(Exception):
    """What a client is told: an HTTP status and OpenAI's error object."""

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

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The same as one server-sent event, for a stream that has begun."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.retry_after_s:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        return headers


def clipped(text: str, chars: int) -> str:
    """So much of `text` at most, and how long it was."""
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text)} characters)"


def no_such_model(model: str) -> ApiError:
    """The answer to a model that never was."""
    shown = clipped(model, _NAME_CHARS)
    return ApiError(404, f"The model `{shown}` does not exist.", param="model", code="model_not_found")


def of_engine(status: int, body: bytes) -> ApiError:
    """An engine's refusal as ours: its status and message, without its internals. Of what it does not
    implement the client should ask no other engine either: 400."""
    status = 400 if status == 501 else status
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
STOPPING = "the service is shutting down; please try again"
