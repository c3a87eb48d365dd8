"""The token counts of a finished turn, and which of them are only bounds."""

from typing import NamedTuple

from msgspec import UNSET, UnsetType

from controlplane.turn.state import TurnState


class Counted(NamedTuple):
    """UNSET: not known."""

    prompt: int | UnsetType = UNSET
    prompt_estimated: bool = False  # no engine counted it
    out: int | UnsetType = UNSET
    out_at_least: bool = False  # a lower bound


def counted(turn: TurnState) -> Counted:
    """From the engine's usage; for an answer that ended without one, from what was sent of it."""
    usage, watch = turn.usage, turn.watch
    prompt: int | UnsetType = usage.prompt_tokens if usage is not None else turn.prefill_prompt or UNSET
    estimated = prompt is UNSET and turn.answered
    if estimated:
        prompt = turn.conversation.turn.prompt
    if usage is not None:
        return Counted(prompt, False, usage.completion_tokens or 0)
    if watch is not None:
        return Counted(prompt, estimated, watch.sent.tokens, not watch.sent.exact)
    return Counted(prompt, estimated)
