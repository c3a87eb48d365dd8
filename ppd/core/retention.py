"""How much of an answer is found again in the next prompt, and whether D still held the conversation.

D holds KV for the tokens that it generated. The next prompt may not contain them: chat templates drop
reasoning and render tool calls anew, and clients trim. Then D's cache ends at the last question, however
fresh it is, and the visible answer is new to it. That is a property of the model and of the kind of answer:
it is learned per both. It says nothing about eviction, which takes away the question's tokens too.

Engines cache whole blocks, so every figure is rounded down to blocks before it is compared.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

_BLOCK_TOKENS = 16  # where an engine does not say
_MAX_MODELS = 64
_KEPT = 0.5  # share of the question's tokens
_WHOLE = 0.95  # a share above this counts as all
_PRIOR_N = 1.0
_NEWEST = 0.05  # least weight of the newest answer


class AnswerKind(StrEnum):
    """What an answer consisted of, as far as the next prompt may differ from it."""

    PLAIN = "plain"
    REASONING = "reasoning"
    TOOLS = "tools"


_PRIOR = {AnswerKind.PLAIN: 1.0, AnswerKind.REASONING: 0.0, AnswerKind.TOOLS: 1.0}


class Judged(NamedTuple):
    """None: the figures do not tell."""

    kept: bool | None = None  # D still held the conversation
    share: float | None = None  # of the last answer's tokens that were found again


UNKNOWN = Judged()


def judge(
    cached_tokens: int,
    question_tokens: int,
    answer_tokens: int,
    earlier_tokens: Iterable[int] = (),
    block_tokens: int = 0,
) -> Judged:
    """What D's cached tokens say, of a turn whose history D computed.

    `question_tokens`: the history up to the last question. `answer_tokens`: of the answer to it; 0 where the
    request has another one. `earlier_tokens`: earlier ends of the history, at which a template may have cut.
    """
    if cached_tokens < 0:
        return UNKNOWN
    block = block_tokens or _BLOCK_TOKENS
    question = question_tokens // block * block
    whole = max(0, question_tokens + answer_tokens - 1) // block * block  # the last token has no KV yet
    if not question:
        return Judged(True, 1.0) if whole and cached_tokens >= whole else UNKNOWN
    if cached_tokens < _KEPT * question:
        ends = {each // block * block for each in earlier_tokens}
        cut = any(end and abs(cached_tokens - end) <= block for end in ends) and cached_tokens > 0
        return UNKNOWN if cut else Judged(False)
    if cached_tokens < question - block or whole <= question:
        return Judged(True)
    share = (cached_tokens - question) / (whole - question)
    return Judged(True, min(max(share, 0.0), 1.0))


class Retention:
    """The learned share, per model and kind of answer."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, AnswerKind], tuple[float, float]] = {}  # mean, and how many

    def observe(self, model: str, kind: AnswerKind, share: float) -> None:
        key = model, kind
        if key not in self._shares and len(self._shares) >= _MAX_MODELS * len(AnswerKind):
            return
        mean, n = self._shares.get(key, (_PRIOR[kind], _PRIOR_N))
        self._shares[key] = mean + max(1 / (n + 1), _NEWEST) * (share - mean), n + 1

    def share(self, model: str, kind: AnswerKind) -> float:
        """Of an answer's tokens, how many the next prompt is expected to hold: 0 to 1."""
        mean = self._shares.get((model, kind), (_PRIOR[kind], 0.0))[0]
        return 1.0 if mean >= _WHOLE else mean
