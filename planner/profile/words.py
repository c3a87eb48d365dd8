"""Text of a wanted number of tokens that no other conversation begins with."""

import random
from collections.abc import Awaitable, Callable

# Three letters and a space: one token to most tokenizers.
_TEXT = """
and the for you not are but had his her was one our out day get has him how man new now old see two way who
boy did its let put say she too use air arm art ask bad bed big bit box buy car cat cup cut dog dry ear eat
egg end eye far few fly fun gas hot ice job key law leg lie lot low map may mix net oil own pay pen pin pot
raw red row run sad sea set sit six sky son sun tax tea ten tie tip toe top toy try van war web wet win yes
"""
_WORDS = _TEXT.split()
_START_WORDS = 8  # 96 ** 8 different beginnings
_SMALL, _BIG = 64, 512


class Words:
    """`fixed`: tokens of an empty message, template included; `per_word`: tokens of one word."""

    def __init__(self, rng: random.Random, fixed: float = 0.0, per_word: float = 1.0) -> None:
        self._rng = rng
        self._fixed = fixed
        self._per_word = per_word

    def start(self) -> str:
        """The very beginning of a conversation: what tells it from all others."""
        return self._draw(_START_WORDS)

    def message(self, tokens: int) -> str:
        """A message that adds about `tokens` to the prompt, its share of the template included."""
        return self._draw(max(1, round((tokens - self._fixed) / self._per_word)))

    def opening(self, tokens: int) -> tuple[str, str]:
        """System and user message of a first turn of about `tokens`."""
        rest = tokens - 2 * self._fixed - _START_WORDS * self._per_word
        return self.start(), self._draw(max(1, round(rest / self._per_word)))

    async def calibrate(self, count: Callable[[str], Awaitable[int]]) -> None:
        """Learn the tokenizer from two prompts of a start and one message; `count` gives their tokens."""
        small = await count(self._draw(_SMALL))
        big = await count(self._draw(_BIG))
        self._per_word = max(0.1, (big - small) / (_BIG - _SMALL))
        both = small - (_SMALL + _START_WORDS) * self._per_word
        self._fixed = max(0.0, both / 2)

    def _draw(self, n: int) -> str:
        return " ".join(self._rng.choices(_WORDS, k=n)) + " "
