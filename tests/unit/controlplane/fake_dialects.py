"""The answers of FakeEngine in Anthropic's Messages, OpenAI's Responses, and to /tokenize and its like."""

import json
from typing import Any

Usage = dict[str, Any]


def event(name: str, **data: Any) -> bytes:
    body = json.dumps({"type": name, **data}, separators=(",", ":"))
    return f"event: {name}\ndata: {body}".encode()


def _messages_usage(usage: Usage) -> dict[str, Any]:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "output_tokens": usage["completion_tokens"],
        "cache_read_input_tokens": cached,
    }


def messages(answer_id: str, model: str, words: list[str], finish: str, usage: Usage) -> dict[str, Any]:
    return {
        "id": answer_id,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "".join(words)}],
        "model": model,
        "stop_reason": {"stop": "end_turn", "length": "max_tokens"}[finish],
        "usage": _messages_usage(usage),
    }


def messages_events(answer_id: str, model: str, words: list[str], usage: Usage) -> list[bytes]:
    told = _messages_usage({**usage, "completion_tokens": 0})
    began = {"id": answer_id, "type": "message", "role": "assistant", "content": [], "model": model}
    return [
        event("message_start", message={**began, "usage": told}),
        event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *(
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
            for word in words
        ),
        event("content_block_stop", index=0),
        event("message_delta", delta={"stop_reason": "end_turn"}, usage=_messages_usage(usage)),
        event("message_stop"),
    ]


def responses(answer_id: str, model: str, words: list[str], finish: str, usage: Usage) -> dict[str, Any]:
    part = {"type": "output_text", "text": "".join(words), "annotations": []}
    return {
        "id": answer_id,
        "object": "response",
        "status": {"stop": "completed", "length": "incomplete"}[finish],
        "model": model,
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]},
            "total_tokens": usage["total_tokens"],
        },
        "kv_transfer_params": None,
    }


def responses_events(answer_id: str, model: str, words: list[str], usage: Usage) -> list[bytes]:
    whole = responses(answer_id, model, words, "stop", usage)
    early = {**whole, "status": "in_progress", "output": [], "usage": None}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    found = [
        event("response.created", response=early),
        event("response.in_progress", response=early),
        event("response.output_item.added", output_index=0, item={"type": "message", "id": "msg_1"}),
        *(event("response.output_text.delta", **at, delta=word) for word in words),
        event("response.output_item.done", output_index=0, item=whole["output"][0]),
        event("response.completed", response=whole),
    ]
    return [each[:-1] + f',"sequence_number":{n}}}'.encode() for n, each in enumerate(found)]


def utility(path: str, usage: Usage) -> dict[str, Any]:
    count = usage["prompt_tokens"]
    if path == "/v1/messages/count_tokens":
        return {"input_tokens": count}
    return {"prompt": "text"} if path == "/detokenize" else {"count": count, "tokens": [1] * count}
