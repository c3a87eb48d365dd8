"""What clients do: conversations of turns, and the names of the blocks that their history fills."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ppd.core.prefixes import Marks

_SPAN = 1 << 24  # more blocks than any conversation has
_TURN_SPAN = 1 << 16
_STRIDE = 512  # tokens between two keys inside a long message


class TurnSpec(NamedTuple):
    n_in: int
    n_out: int
    think_s: float = 0.0  # before it is asked, after the last answer


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat.

    `blocks` names its blocks where the history is not its own alone (a trace's shared prefixes).
    `retokenized`: a client sends the history as text, whose tokens are not those that the engine generated:
    after the first `kept_tokens` of an answer its blocks are found by no later turn.
    """

    id: int
    start_s: float
    turns: tuple[TurnSpec, ...]
    shared_tokens: int = 0  # at its head: a system prompt that others begin with too
    blocks: tuple[int, ...] = ()  # ids of runs of `run_tokens` tokens each
    run_tokens: int = 512
    retokenized: bool = False
    kept_tokens: int = 0

    def context(self, turn: int) -> int:
        """Tokens before the turn of this index."""
        return sum(t.n_in + t.n_out for t in self.turns[:turn])

    def keys(self, turn: int, block_tokens: int) -> Sequence[int]:
        """A key for each block up to the end of this turn's answer."""
        total = self.context(turn + 1) // block_tokens
        first = (self.id + 1) * _SPAN
        if self.retokenized:
            spec = self.turns[turn]
            same = (self.context(turn) + spec.n_in + min(self.kept_tokens, spec.n_out)) // block_tokens
            generated = first + (turn + 1) * _TURN_SPAN
            return (*range(first, first + same), *range(generated + same, generated + total))
        if self.blocks:
            return self._by_trace(total, block_tokens, first)
        shared = min(self.shared_tokens // block_tokens, total)
        return (
            (*range(shared), *range(first + shared, first + total)) if shared else range(first, first + total)
        )

    def marks(self, turn: int) -> Marks:
        """What a frontend sees of this turn's prompt: a key at each message's end, and at each stride."""
        places = self._places(turn)
        run = self.run_tokens
        own = (self.id + 1) * _SPAN
        keys = []
        for at in places:
            if at <= self.shared_tokens:
                keys.append(-(1 << 60) - at)
            elif self.blocks and at % run == 0 and at // run <= len(self.blocks):
                keys.append(-(1 << 61) - self.blocks[at // run - 1])
            else:
                keys.append(own + at)
        return Marks(tuple(keys), tuple(places))

    def _places(self, turn: int) -> list[int]:
        ends, at = {self.shared_tokens} if self.shared_tokens else set(), 0
        for spec in self.turns[:turn]:
            ends |= {at + spec.n_in, at + spec.n_in + spec.n_out}
            at += spec.n_in + spec.n_out
        at += self.turns[turn].n_in
        return sorted({*ends, *range(_STRIDE, at, _STRIDE), at})

    def _by_trace(self, total: int, block_tokens: int, first: int) -> tuple[int, ...]:
        """By the trace's ids (below 0, apart from all others), and one's own where it names none."""
        each = self.run_tokens // block_tokens
        named = [-1 - (run * each + i) for run in self.blocks for i in range(each)][:total]
        return (*named, *range(first + len(named), first + total))
