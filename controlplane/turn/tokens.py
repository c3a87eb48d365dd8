"""How many tokens a text has: by the model's tokenizer where it is known, else by its length."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from controlplane.dialects.body_prefix import Remembered
from ppd.core.identity import Message
from ppd.core.predict import blend

_BYTES_PER_TOKEN = 4.0
_MESSAGE_TOKENS = 5  # what a chat template puts around a message
_EXACT_CHARS = 16_384  # of one turn; what is longer is estimated: tokenizing it would hold up other streams
_MAX_MODELS = 64


def _text(message: Message) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


class TokenCounter:
    """Counts, per model. Estimates are calibrated by what the engines report."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._tokenizers: dict[str, Tokenizer | None] = {}
        self._bytes_per_token: dict[str, float] = {}

    async def load(self, model: str, folder: str) -> None:
        """Use the `tokenizer.json` in `folder` for `model`; a folder without one is said and left alone."""
        if model in self._tokenizers or len(self._tokenizers) >= _MAX_MODELS:
            return
        self._tokenizers[model] = None
        path = Path(folder) / "tokenizer.json"
        try:
            self._tokenizers[model] = await asyncio.to_thread(Tokenizer.from_file, str(path))
            self._log.info("counting tokens of %s with %s", model, path)
        except Exception as error:  # the library raises bare Exception
            self._log.info("estimating token counts of %s from their length: %s", model, error)

    def count(self, model: str, messages: Sequence[Message]) -> int:
        """Tokens of these messages in a prompt, chat template included (roughly)."""
        tokenizer = self._tokenizers.get(model)
        left = _EXACT_CHARS
        total = _MESSAGE_TOKENS * len(messages)
        for message in messages:
            if isinstance(message, Remembered):
                total += self.estimate(model, message.chars)
                continue
            text = _text(message)
            if tokenizer is not None and len(text) <= left:
                left -= len(text)
                total += len(tokenizer.encode(text, add_special_tokens=False).ids)
            else:
                total += self.estimate(model, len(text))
        return total

    def estimate(self, model: str, n_bytes: int) -> int:
        """Tokens of so many bytes."""
        return round(n_bytes / self._bytes_per_token.get(model, _BYTES_PER_TOKEN))

    def learn(self, model: str, n_bytes: int, n_tokens: int) -> None:
        """A prompt's real count, as the engine reported it."""
        if n_tokens >= 64 and (model in self._bytes_per_token or len(self._bytes_per_token) < _MAX_MODELS):
            seen = min(max(n_bytes / n_tokens, 1.0), 12.0)
            self._bytes_per_token[model] = blend(self._bytes_per_token.get(model, 0.0), seen, 0.05)
