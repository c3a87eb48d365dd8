"""One conversation of a cell's shape: a first turn that builds the context, then turns on one path."""

import secrets
import time

from planner.profile.client import Frontend, MeasuredAnswer, TurnError
from planner.profile.records import TurnSample
from planner.profile.words import Words
from ppd.core.cells import CONTEXT_TOKENS, SHAPES, Cell
from ppd.core.names import Route


async def hold(
    frontend: Frontend, words: Words, cell: Cell, path: Route, turns: int, deadline_s: float
) -> list[TurnSample]:
    """The samples of turns 2 to `turns`; the one that failed is the last. Never raises TurnError."""
    began_s = time.monotonic()
    first = CONTEXT_TOKENS[cell.context] // 2  # as long in as out
    shape = SHAPES[cell.ratio]
    session = f"profile-{secrets.token_hex(8)}"
    system, user = words.opening(first)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    samples: list[TurnSample] = []
    turn, n_ctx = 1, 0
    try:
        answer = await frontend.ask(messages, first, session, deadline_s)
        for turn in range(2, turns + 1):
            n_ctx = answer.prompt_tokens + answer.completion_tokens
            messages += [
                {"role": "assistant", "content": answer.text},
                {"role": "user", "content": words.message(shape.n_in)},
            ]
            answer = await frontend.ask(messages, shape.n_out, session, deadline_s, path)
            samples.append(_sample(turn, n_ctx, answer, path, time.monotonic() - began_s))
    except TurnError as error:
        samples.append(TurnSample(turn=turn, n_ctx=n_ctx, error=str(error)))
    return samples


def _sample(turn: int, n_ctx: int, answer: MeasuredAnswer, path: Route, conversation_s: float) -> TurnSample:
    """A turn that went another way than asked measured another path."""
    return TurnSample(
        turn=turn,
        ttft_ms=answer.ttft_ms,
        tpot_ms=answer.tpot_ms,
        n_ctx=n_ctx,
        n_in=max(0, answer.prompt_tokens - n_ctx),
        n_out=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        conversation_s=conversation_s,
        error="" if answer.route == path else f"went {answer.route} ({answer.reason})",
    )
