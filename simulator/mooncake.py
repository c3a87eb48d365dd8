"""The Mooncake conversation trace, rebuilt into conversations by its prefix blocks.

A request continues an earlier one if its prefix ids begin with all of that one's full blocks; the longest
such match that has not been continued yet is its last turn. What is left over of the input is new.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from simulator.conversation import Conversation, TurnSpec

BLOCK_TOKENS = 512
_MAX_THINK_S = 600.0


class TraceRequest(msgspec.Struct, frozen=True):
    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: list[int]


def read(path: Path) -> list[TraceRequest]:
    """Raises OSError or msgspec.DecodeError for a file that is not the trace."""
    decoder = msgspec.json.Decoder(TraceRequest)
    return [decoder.decode(line) for line in path.read_bytes().splitlines() if line]


class _Chat:
    def __init__(self, request: TraceRequest) -> None:
        self.requests = [request]

    @property
    def tip(self) -> tuple[int, ...]:
        """The ids of the last turn's full blocks."""
        last = self.requests[-1]
        return tuple(last.hash_ids[: last.input_length // BLOCK_TOKENS])


def conversations(
    trace: Iterable[TraceRequest], max_context_tokens: int = 32_000, speedup: float = 1.0
) -> list[Conversation]:
    """Chats in the order of their start; those that outgrow `max_context_tokens` end before that turn."""
    chats: list[_Chat] = []
    tips: dict[tuple[int, ...], _Chat] = {}
    for request in trace:
        chat = _continued(request, tips)
        if chat is None:
            chat = _Chat(request)
            chats.append(chat)
        else:
            chat.requests.append(request)
        if chat.tip:
            tips[chat.tip] = chat
    built = (_build(i, chat, max_context_tokens, speedup) for i, chat in enumerate(chats))
    return [c for c in built if c is not None]


def _continued(request: TraceRequest, tips: dict[tuple[int, ...], _Chat]) -> _Chat | None:
    full = request.input_length // BLOCK_TOKENS
    for n in range(full, 0, -1):
        chat = tips.get(tuple(request.hash_ids[:n]))
        if chat is not None and chat.requests[-1].input_length + 1 < request.input_length:
            del tips[chat.tip]
            return chat
    return None


def _build(number: int, chat: _Chat, max_context_tokens: int, speedup: float) -> Conversation | None:
    turns: list[TurnSpec] = []
    context = 0
    last_s = chat.requests[0].timestamp / 1e3
    for request in chat.requests:
        n_in = request.input_length - context
        if n_in < 1:  # the answer was cut from the history: what is new cannot be told
            n_in = 1
        if context + n_in + request.output_length > max_context_tokens:
            break
        at_s = request.timestamp / 1e3
        think_s = min((at_s - last_s) / speedup, _MAX_THINK_S) if turns else 0.0
        turns.append(TurnSpec(n_in, request.output_length, think_s))
        context += n_in + request.output_length
        last_s = at_s
    if not turns:
        return None
    start_s = chat.requests[0].timestamp / 1e3 / speedup
    return Conversation(number, start_s, tuple(turns), blocks=tuple(chat.requests[-1].hash_ids))
