"""How large a prompt is before it is tokenized: text by its UTF-8 bytes, whatever the JSON around it; images
and other media by their number, since their tokens do not depend on the bytes that carry them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from ppd.core.identity import Message

_ESCAPE = b"\\u"


class PromptSize(NamedTuple):
    """Of a prompt, or a part of one."""

    messages: int = 0
    text_bytes: int = 0
    media: int = 0  # images, audio, video
    tokens: int = 0  # that the client tokenized itself

    def plus(self, other: "PromptSize") -> "PromptSize":
        return PromptSize(*(a + b for a, b in zip(self, other, strict=True)))


class MeasuredMessage(Message):
    """A message without its text, but with its size."""

    text_bytes: int = 0
    media: int = 0


def utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def text_of(content: str | Sequence[Any] | None) -> str:
    """The text of a message; that of its parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else _text_of_part(part) or "" for part in content)


def media_of(content: str | Sequence[Any] | None) -> int:
    """The parts of a message that are no text."""
    if content is None or isinstance(content, str):
        return 0
    return sum(not isinstance(part, str) and _text_of_part(part) is None for part in content)


def _text_of_part(part: Any) -> str | None:
    if not isinstance(part, dict):
        return ""
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None


def of_message(message: Message) -> PromptSize:
    if isinstance(message, MeasuredMessage):
        return PromptSize(1, message.text_bytes, message.media)
    text_bytes = utf8_bytes(text_of(message.content))
    if message.tool_calls:
        text_bytes += len(msgspec.json.encode(message.tool_calls))
    return PromptSize(1, text_bytes, media_of(message.content))


def of_messages(messages: Iterable[Message]) -> PromptSize:
    sizes = [of_message(message) for message in messages]
    return PromptSize(len(sizes), sum(size.text_bytes for size in sizes), sum(size.media for size in sizes))


def of_tools(raw: bytes) -> PromptSize:
    """Of the tools as they are in the body. Six bytes of an escape mostly stand for three."""
    return PromptSize(text_bytes=len(raw) - 3 * raw.count(_ESCAPE))


def of_prompt(prompt: str | Sequence[Any] | None) -> PromptSize:
    """Of a completion's prompt or prompts: texts, or token ids."""
    if prompt is None or isinstance(prompt, str):
        return PromptSize(text_bytes=utf8_bytes(prompt or ""))
    tokens = sum(isinstance(part, int) for part in prompt)
    rest = [of_prompt(part) for part in prompt if isinstance(part, str | list)]
    return PromptSize(
        text_bytes=sum(size.text_bytes for size in rest), tokens=tokens + sum(size.tokens for size in rest)
    )
