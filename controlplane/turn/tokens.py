"""Token counts of texts: by the model's tokenizer where it is known, otherwise estimated by length."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from controlplane.dialects.prompt_size import MeasuredMessage, PromptSize, of_message, text_of, utf8_bytes
from ppd.core.identity import Message
from ppd.core.predict import blend

_BYTES_PER_TOKEN = 4.0  # until the model's own is known
_BYTES_RANGE = (1.0, 12.0)
_TOKENS_PER_MEDIUM = 1000.0  # of an image, likewise: vision models make 256 to 4,000 of one
_MEDIUM_RANGE = (1.0, 100_000.0)
_LEAST_TOKENS = 64  # shorter prompts are not learned from: the template is too large a part of them
_NEWEST = 0.05  # weight of the newest prompt
_MESSAGE_TOKENS = 5  # what a chat template puts around a message
_EXACT_CHARS = 16_384  # of one turn; tokenizing more would delay other streams, so it is estimated
_MAX_MODELS = 64


class TokenCounter:
    """Counts tokens by model. Its estimates are calibrated with the counts that engines report."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._tokenizers: dict[str, Tokenizer | None] = {}
        self._bytes_per_token: dict[str, float] = {}
        self._tokens_per_medium: dict[str, float] = {}

    async def load(self, model: str, folder: str) -> None:
        """Use the `tokenizer.json` in `folder` for `model`; folders without one are logged and skipped."""
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
        total = 0
        rest = PromptSize()
        for message in messages:
            size = of_message(message)
            if tokenizer is not None and not isinstance(message, MeasuredMessage):
                text = text_of(message.content)
                if len(text) <= left:
                    left -= len(text)
                    total += len(tokenizer.encode(text, add_special_tokens=False).ids)
                    size = size._replace(text_bytes=size.text_bytes - utf8_bytes(text))
            rest = rest.plus(size)
        return total + self.estimate(model, rest)

    def estimate(self, model: str, size: PromptSize) -> int:
        """Estimated tokens of a prompt of this size, from what engines reported for earlier prompts."""
        text = size.text_bytes / self._bytes_per_token.get(model, _BYTES_PER_TOKEN)
        media = size.media * self._tokens_per_medium.get(model, _TOKENS_PER_MEDIUM)
        return round(text + media) + _MESSAGE_TOKENS * size.messages + size.tokens

    def learn(self, model: str, size: PromptSize, n_tokens: int) -> None:
        """Learn from a prompt's real count. A prompt with media calibrates the cost of media, and not that
        of text.
        """
        text_tokens = n_tokens - _MESSAGE_TOKENS * size.messages
        if size.tokens or text_tokens < _LEAST_TOKENS:
            return
        if size.media:
            if model in self._bytes_per_token:
                each = (text_tokens - size.text_bytes / self._bytes_per_token[model]) / size.media
                _blend_in(self._tokens_per_medium, model, each, _MEDIUM_RANGE)
        elif size.text_bytes:
            _blend_in(self._bytes_per_token, model, size.text_bytes / text_tokens, _BYTES_RANGE)


def _blend_in(means: dict[str, float], model: str, value: float, bounds: tuple[float, float]) -> None:
    if model in means or len(means) < _MAX_MODELS:
        seen = min(max(value, bounds[0]), bounds[1])
        means[model] = blend(means.get(model, 0.0), seen, _NEWEST)
