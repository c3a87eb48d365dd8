"""What a profile writes down: one line of JSON per point, so that it can be resumed and read again."""

from enum import StrEnum

import msgspec

from ppd.core.names import Route


class ProfileError(RuntimeError):
    """The cluster cannot be measured; the message says what to do about it."""


class Flag(StrEnum):
    """What is wrong with a point."""

    FAILED = "failed"  # fewer than 90 % of its turns came through on the path that was asked for
    SATURATED = "saturated"  # conversations took longer and longer: the rate is more than the cluster serves


class TurnSample(msgspec.Struct, frozen=True, kw_only=True):
    """One later turn of one conversation. Times in ms, tokens as the engine counted them."""

    turn: int
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    n_ctx: int = 0
    n_in: int = 0
    n_out: int = 0
    cached_tokens: int = -1  # of the prompt, before this turn, on the engine that prefilled it; -1 = not told
    conversation_s: float = 0.0  # from the conversation's first byte to the end of this turn
    error: str = ""  # empty = it came through

    @property
    def ok(self) -> bool:
        return not self.error


class Head(msgspec.Struct, frozen=True, kw_only=True, tag="head"):
    """What was measured: a resumed profile must be of the same."""

    model: str
    placement: str
    hardware: str
    turns: int
    started_unix_s: float = 0.0


class Speeds(msgspec.Struct, frozen=True, kw_only=True, tag="speeds"):
    """What the cluster reached when asked for all it has."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    step_ms: float  # between two tokens of a stream, at that load
    streams: int  # how many ran then


class Point(msgspec.Struct, frozen=True, kw_only=True, tag="point"):
    """One cell on one path, measured once."""

    cell: str
    path: Route
    rate: float  # conversations a second that were offered; the cell's level stands for it
    samples: tuple[TurnSample, ...]
    seconds: float
    ended_unix_s: float = 0.0
    flag: Flag | None = None
    growth: float = 1.0  # how much longer its second half of conversations took than its first


Line = Head | Speeds | Point
