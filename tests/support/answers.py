"""What a client reads from an answer of the chat API."""

import json
from typing import Any

TEXT = "Paris it is."  # of a fake engine


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"]["content"]


def events(text: str) -> list[Any]:
    parts = [part[6:] for part in text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def words(streamed: list[Any]) -> str:
    return "".join(
        event["choices"][0]["delta"].get("content") or "" for event in streamed if event["choices"]
    )
