"""OpenAI's Responses, as vLLM serves them, its store included."""

import time
from collections import OrderedDict
from typing import Any

import msgspec

from workers.sim import shapes
from workers.sim.request import BadRequestError, Body, ParsedRequest, SimAnswer, parse_as
from workers.sim.shapes import encode

_KEPT = 4096


class _Asked(msgspec.Struct):
    model: str = ""
    input: str | list[dict[str, Any]] = ""
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")
    kv_transfer_params: dict[str, Any] | None = None


class Responses:
    """`/v1/responses`, and the responses that are kept."""

    chat = True
    prefix = "resp_"

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._chats: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()  # with the answer

    def read(self, data: bytes) -> Body:
        asked = parse_as(data, _Asked)
        chat: list[dict[str, Any]] = []
        if asked.instructions:
            chat.append({"role": "system", "content": asked.instructions})
        if asked.previous_response_id:
            chat += self._chat_of(asked.previous_response_id)
        chat += _chat(asked.input)
        return Body(
            model=asked.model,
            messages=chat,
            max_tokens=asked.max_output_tokens,
            stream=asked.stream,
            tools=msgspec.Raw(b"") if bytes(asked.tools) == b"[]" else asked.tools,
            kv_transfer_params=asked.kv_transfer_params,
            store=asked.store is not False,
        )

    def error(self, message: str, status: int, kind: str) -> dict[str, Any]:
        return shapes.error(message, status, kind)

    def whole(
        self,
        parsed: ParsedRequest,
        request_id: str,
        created: int,
        counts: dict[str, Any],
        kv: dict[str, Any] | None,
    ) -> bytes:
        response = self.respond(parsed, request_id, created, counts)
        return encode({**response, "kv_transfer_params": kv})

    def frames(self, parsed: ParsedRequest, answer: SimAnswer, request_id: str, created: int) -> "_Frames":
        return _Frames(self, parsed, request_id, created)

    def respond(
        self, parsed: ParsedRequest, request_id: str, created: int, counts: dict[str, Any]
    ) -> dict[str, Any]:
        [answer] = parsed.answers
        response = _begun(parsed, request_id, created)
        short = answer.finish == "length"
        response |= {
            "status": "incomplete" if short else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if short else None,
            "output": [_item(request_id, "".join(answer.tokens))],
            "usage": _usage(counts),
        }
        if parsed.body.store:
            said = {"role": "assistant", "content": "".join(answer.tokens)}
            self._keep(request_id, response, [*(parsed.body.messages or []), said])
        return response

    # --- the store ---

    def _keep(self, response_id: str, response: dict[str, Any], chat: list[dict[str, Any]]) -> None:
        self._kept[response_id], self._chats[response_id] = response, chat
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
            self._chats.popitem(last=False)

    def _chat_of(self, response_id: str) -> list[dict[str, Any]]:
        self.get(response_id)
        return self._chats[response_id]

    def get(self, response_id: str) -> dict[str, Any]:
        """Raises BadRequestError (404)."""
        found = self._kept.get(response_id)
        if found is None:
            raise BadRequestError(f"Response with id '{response_id}' not found.", 404, "NotFoundError")
        return found

    def delete(self, response_id: str) -> dict[str, Any]:
        """Raises BadRequestError (404)."""
        self.get(response_id)
        del self._kept[response_id], self._chats[response_id]
        return {"id": response_id, "object": "response", "deleted": True}

    def cancel(self, response_id: str) -> dict[str, Any]:
        """Raises BadRequestError: none runs in the background."""
        self.get(response_id)
        raise BadRequestError("Cannot cancel a synchronous response.", 400, "invalid_request_error")

    def input_items(self, response_id: str) -> dict[str, Any]:
        """Raises BadRequestError (404)."""
        items = [{"type": "message", **message} for message in self._chat_of(response_id)[:-1]]
        return {"object": "list", "data": items, "has_more": False}


def _chat(asked: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    chat: list[dict[str, Any]] = []
    for item in asked:
        kind = item.get("type") or "message"
        if kind == "function_call":
            chat.append({"role": "assistant", "content": "", "tool_calls": [item]})
        elif kind == "function_call_output":
            chat.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
        elif kind == "message":
            chat.append({"role": item.get("role"), "content": item.get("content")})
    return chat


def _begun(parsed: ParsedRequest, request_id: str, created: int) -> dict[str, Any]:
    return {
        "id": request_id,
        "object": "response",
        "created_at": created or int(time.time()),
        "status": "in_progress",
        "model": parsed.body.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
        "kv_transfer_params": None,
    }


def _item(request_id: str, said: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": said, "annotations": []}
    item_id = f"msg_{request_id.removeprefix('resp_')}"
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _usage(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": counts["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }


class _Frames:
    """The events of a streamed answer."""

    def __init__(self, owner: Responses, parsed: ParsedRequest, request_id: str, created: int) -> None:
        self._owner = owner
        self._parsed = parsed
        [self._answer] = parsed.answers
        self._request_id = request_id
        self._created = created
        self._item = _item(request_id, "".join(self._answer.tokens))
        self._at = {"item_id": self._item["id"], "output_index": 0, "content_index": 0}
        self._number = 0

    def _event(self, name: str, **data: Any) -> bytes:
        body = encode({"type": name, "sequence_number": self._number, **data})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), body)

    def announcement(self) -> bytes:
        """Sent at once, as vLLM does: before there is a token."""
        began = _begun(self._parsed, self._request_id, self._created)
        return self._event("response.created", response=began) + self._event(
            "response.in_progress", response=began
        )

    def opening(self) -> bytes:
        item = {**self._item, "status": "in_progress", "content": []}
        part = {**self._item["content"][0], "text": ""}
        return self._event("response.output_item.added", output_index=0, item=item) + self._event(
            "response.content_part.added", **self._at, part=part
        )

    def tokens(self, first: int, last: int) -> bytes:
        piece = "".join(self._answer.tokens[first:last])
        return self._event("response.output_text.delta", **self._at, delta=piece, logprobs=[])

    def closing(self, counts: dict[str, Any]) -> bytes:
        part = self._item["content"][0]
        response = self._owner.respond(self._parsed, self._request_id, self._created, counts)
        return b"".join(
            (
                self._event("response.output_text.done", **self._at, text=part["text"], logprobs=[]),
                self._event("response.content_part.done", **self._at, part=part),
                self._event("response.output_item.done", output_index=0, item=self._item),
                self._event("response.completed", response=response),
            )
        )
