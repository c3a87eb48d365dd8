"""Text without a model: four characters are a token, and the next token follows from all text before it.

So the same prompt gives the same answer on every engine, and a prompt with the beginning of an answer
behind it gives the rest of that answer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

TOKEN_CHARS = 4
_VOCABULARY = 1 << 17
_THREE_LETTERS = """
and the for you not are but had his her was one our out day get has him how man new now old see two way who
boy did its let put say she too use air arm art ask bad bed big bit box buy car cat cup cut dog dry ear eat
egg end eye far few fly fun gas gun hat hot ice job key law leg lie lot low map may mix mud net oil own pay
pen pig pin pot raw red row run sad sea set sin sit six sky son sun tax tea ten tie tip toe top toy try van
war web wet win yes zip
"""
_WORDS = [word + " " for word in _THREE_LETTERS.split()]
_ENCODED = [word.encode() for word in _WORDS]


def render(messages: Sequence[dict[str, Any]], tools: str = "", open_answer: bool = True) -> str:
    """A chat as one prompt; `open_answer` = a new answer begins, else the last message is continued."""
    parts = [_aligned(f"<|tools|>{tools}")] if tools else []
    last = len(messages) - 1
    for i, message in enumerate(messages):
        body = f"<|{message.get('role', '')}|>".ljust(16, "\n") + _content(message)
        parts.append(body if i == last and not open_answer else _aligned(body) + "<|/|")
    if open_answer:
        parts.append("<|assistant|>".ljust(16, "\n"))
    return "".join(parts)


def _aligned(text: str) -> str:
    return text + "\n" * (-len(text) % TOKEN_CHARS)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", part)) for part in content if isinstance(part, dict))
    extra = "".join(
        f"\n{key}={message[key]}" for key in ("name", "tool_calls", "tool_call_id") if message.get(key)
    )
    return (content or "") + extra


def count(text: str) -> int:
    return -(-len(text) // TOKEN_CHARS)


def pieces(text: str) -> list[str]:
    """The tokens of `text`."""
    return [text[i : i + TOKEN_CHARS] for i in range(0, len(text), TOKEN_CHARS)]


def token_id(piece: str) -> int:
    return xxhash.xxh32_intdigest(_bytes(piece)) % _VOCABULARY


def from_ids(ids: Sequence[int]) -> str:
    """A prompt that came as token ids: no text is known for them, so each stands for itself."""
    return "".join(f"{i % 65536:04x}" for i in ids)


def answer(prompt: str, limit: int, mean_tokens: float, choice: int = 0) -> tuple[list[str], bool]:
    """Up to `limit` tokens that follow `prompt`, and whether the answer ended by itself.

    An answer ends after `mean_tokens` on average; 0 = never by itself. `choice` tells several answers to one
    prompt apart.
    """
    state = xxhash.xxh64(_bytes(prompt), seed=choice)
    out: list[str] = []
    stop_below = int(2**32 / mean_tokens) if mean_tokens else 0
    while len(out) < limit:
        digest = state.intdigest()
        word = digest % len(_WORDS)
        out.append(_WORDS[word])
        state.update(_ENCODED[word])
        if digest >> 32 < stop_below:
            return out, True
    return out, False


def block_keys(text: str, block_tokens: int) -> Iterator[int]:
    """A key per full block; equal keys mean equal text up to the block's end."""
    state = xxhash.xxh64()
    size = block_tokens * TOKEN_CHARS
    for start in range(0, len(text) - size + 1, size):
        state.update(_bytes(text[start : start + size]))
        yield state.intdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
