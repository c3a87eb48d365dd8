"""vLLM's answers as JSON: whole ones, and the frames of a stream."""

from typing import Any, Protocol

import msgspec

from workers.sim.request import Body, ParsedRequest, SimAnswer, parse_as

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error(message: str, status: int, kind: str = "BadRequestError") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


class Frames(Protocol):
    """The server-sent events of one choice of an answer."""

    def announcement(self) -> bytes:
        """Before there is a token."""

    def opening(self) -> bytes:
        """With the first token."""

    def tokens(self, first: int, last: int) -> bytes:
        """Tokens `first` to `last` (not included) in one event."""

    def closing(self, counts: dict[str, Any]) -> bytes:
        """The end of the stream; asked of the first choice alone."""


class ApiShape(Protocol):
    """What one API's answers look like."""

    def error(self, message: str, status: int, kind: str) -> dict[str, Any]: ...

    def whole(
        self,
        parsed: ParsedRequest,
        request_id: str,
        created: int,
        counts: dict[str, Any],
        kv: dict[str, Any] | None,
    ) -> bytes:
        """The answer to a request that was not streamed."""

    def frames(self, parsed: ParsedRequest, answer: SimAnswer, request_id: str, created: int) -> Frames: ...


class OpenAi:
    """Chats and completions."""

    def __init__(self, chat: bool) -> None:
        self.chat = chat
        self.prefix = "chatcmpl-" if chat else "cmpl-"

    def read(self, data: bytes) -> Body:
        return parse_as(data, Body)

    def error(self, message: str, status: int, kind: str) -> dict[str, Any]:
        return error(message, status, kind)

    def whole(
        self,
        parsed: ParsedRequest,
        request_id: str,
        created: int,
        counts: dict[str, Any],
        kv: dict[str, Any] | None,
    ) -> bytes:
        return encode(
            {
                "id": request_id,
                "object": "chat.completion" if parsed.chat else "text_completion",
                "created": created,
                "model": parsed.body.model,
                "choices": [_choice(parsed, answer) for answer in parsed.answers],
                "usage": counts,
                "kv_transfer_params": kv,
            }
        )

    def frames(self, parsed: ParsedRequest, answer: SimAnswer, request_id: str, created: int) -> Frames:
        return _Chunks(parsed, answer, request_id, created)


def _choice(parsed: ParsedRequest, answer: SimAnswer) -> dict[str, Any]:
    content = "".join(answer.tokens)
    choice: dict[str, Any] = {"index": answer.index, "finish_reason": answer.finish, "stop_reason": None}
    if parsed.chat:
        choice["message"] = {"role": "assistant", "content": content, "tool_calls": []}
    else:
        choice["text"] = content
    choice["logprobs"] = _logprobs(answer.tokens, parsed.chat) if parsed.body.logprobs else None
    return choice


def _logprobs(tokens: list[str], chat: bool) -> dict[str, Any]:
    """Certainty: the model has no second thoughts."""
    if chat:
        return {
            "content": [
                {"token": t, "logprob": 0.0, "bytes": list(t.encode()), "top_logprobs": []} for t in tokens
            ]
        }
    return {"tokens": tokens, "token_logprobs": [0.0] * len(tokens), "top_logprobs": None, "text_offset": []}


class _Chunks:
    """The chunks of one choice; what is the same in each is encoded once."""

    def __init__(self, parsed: ParsedRequest, answer: SimAnswer, request_id: str, created: int) -> None:
        kind = "chat.completion.chunk" if parsed.chat else "text_completion"
        self._head: dict[str, Any] = {
            "id": request_id,
            "object": kind,
            "created": created,
            "model": parsed.body.model,
        }
        self._answer = answer
        self._include_usage = parsed.include_usage
        self._chat = parsed.chat
        self._logprobs = bool(parsed.body.logprobs)
        body = b"data: " + encode(self._head)[:-1]
        start = b',"choices":[{"index":%d,' % answer.index
        if parsed.chat:
            self._before, self._after = body + start + b'"delta":{"content":', b'},"logprobs":'
        else:
            self._before, self._after = body + start + b'"text":', b',"logprobs":'

    def announcement(self) -> bytes:
        return b""

    def opening(self) -> bytes:
        """Chat's first chunk, which names the role."""
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": self._answer.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return b"data: " + encode({**self._head, "choices": [choice]}) + b"\n\n"

    def tokens(self, first: int, last: int) -> bytes:
        """Tokens `first` to `last` (not included) in one event, with the finish reason if that is the end."""
        piece = self._answer.tokens[first:last]
        over = last >= len(self._answer.tokens)
        logprobs = encode(_logprobs(piece, self._chat)) if self._logprobs else b"null"
        finish = encode(self._answer.finish) if over else b"null"
        content = encode("".join(piece))
        return b"".join(
            (self._before, content, self._after, logprobs, b',"finish_reason":', finish, b"}]}\n\n")
        )

    def closing(self, counts: dict[str, Any]) -> bytes:
        if not self._include_usage:
            return DONE
        return b"data: " + encode({**self._head, "choices": [], "usage": counts}) + b"\n\n" + DONE
