"""Anthropic's Messages, as vLLM serves them: a chat in other words."""

from typing import Any

import msgspec

from workers.sim import text
from workers.sim.request import BadRequestError, Body, ParsedRequest, SimAnswer, parse_as
from workers.sim.shapes import encode

_STOPS = {"stop": "end_turn", "length": "max_tokens"}


class _Asked(msgspec.Struct):
    model: str = ""
    messages: list[dict[str, Any]] = []
    system: str | list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    kv_transfer_params: dict[str, Any] | None = None


class Messages:
    """`/v1/messages`, and `/v1/messages/count_tokens`."""

    chat = True
    prefix = "chatcmpl-"

    def read(self, data: bytes) -> Body:
        asked = parse_as(data, _Asked)
        if asked.max_tokens is not None and asked.max_tokens < 1:
            raise BadRequestError("max_tokens must be positive")
        return Body(
            model=asked.model,
            messages=_chat(asked),
            max_tokens=asked.max_tokens,
            stop=asked.stop_sequences,
            stream=asked.stream,
            tools=asked.tools,
            kv_transfer_params=asked.kv_transfer_params,
        )

    def error(self, message: str, status: int, kind: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def whole(
        self,
        parsed: ParsedRequest,
        request_id: str,
        created: int,
        counts: dict[str, Any],
        kv: dict[str, Any] | None,
    ) -> bytes:
        [answer] = parsed.answers
        message: dict[str, Any] = {
            **_head(parsed, request_id),
            "content": [{"type": "text", "text": "".join(answer.tokens)}],
            "stop_reason": _STOPS[answer.finish],
            "usage": _usage(counts),
        }
        return encode({**message, "kv_transfer_params": kv} if kv else message)

    def frames(self, parsed: ParsedRequest, answer: SimAnswer, request_id: str, created: int) -> "_Frames":
        return _Frames(parsed, answer, request_id)


def _chat(asked: _Asked) -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = []
    if asked.system:
        chat.append({"role": "system", "content": asked.system})
    for message in asked.messages:
        content = message.get("content")
        if not isinstance(content, list):
            chat.append(message)
            continue
        texts, calls = [], []
        for block in content:
            if block.get("type") == "tool_use":
                calls.append({"id": block.get("id"), "name": block.get("name"), "input": block.get("input")})
            elif block.get("type") == "tool_result":
                result = {"role": "tool", "tool_call_id": block.get("tool_use_id")}
                chat.append({**result, "content": block.get("content")})
            else:
                texts.append(str(block.get("text", "")))
        if texts or calls:
            chat.append({"role": message.get("role"), "content": "".join(texts), "tool_calls": calls or None})
    return chat


def _head(parsed: ParsedRequest, request_id: str) -> dict[str, Any]:
    return {"id": request_id, "type": "message", "role": "assistant", "model": parsed.body.model}


def _usage(counts: dict[str, Any]) -> dict[str, int]:
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "output_tokens": counts["completion_tokens"],
        "cache_read_input_tokens": cached,
    }


def _event(name: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **data}))


class _Frames:
    """The events of a streamed answer."""

    def __init__(self, parsed: ParsedRequest, answer: SimAnswer, request_id: str) -> None:
        self._answer = answer
        self._began = {
            **_head(parsed, request_id),
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": text.count(answer.prompt), "output_tokens": 0},
        }

    def announcement(self) -> bytes:
        return b""

    def opening(self) -> bytes:
        block = {"type": "text", "text": ""}
        return _event("message_start", message=self._began) + _event(
            "content_block_start", index=0, content_block=block
        )

    def tokens(self, first: int, last: int) -> bytes:
        piece = "".join(self._answer.tokens[first:last])
        return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    def closing(self, counts: dict[str, Any]) -> bytes:
        stop = {"stop_reason": _STOPS[self._answer.finish], "stop_sequence": None}
        return b"".join(
            (
                _event("content_block_stop", index=0),
                _event("message_delta", delta=stop, usage=_usage(counts)),
                _event("message_stop"),
            )
        )
