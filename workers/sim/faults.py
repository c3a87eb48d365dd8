"""Faults on demand: what an engine can be told to do wrong."""

import random
from typing import Any

import msgspec


class Faults(msgspec.Struct):
    """POST any of these fields to `/sim/faults`; DELETE ends all of them."""

    error_status: int = 0  # answer the next `error_count` requests with this HTTP status
    error_count: int = 0
    error_share: float = 0.0  # and this share of all others with `error_status`, or 500
    delay_s: float = 0.0  # before a request is looked at
    stalled: bool = False  # accept, but make no step
    hang_health: bool = False  # answer neither /health nor /metrics
    kv_slow: float = 1.0  # factor by which KV leaves this engine more slowly
    kv_fail: bool = False  # KV reads of this engine are refused
    kv_hang: bool = False  # KV reads of this engine are never answered
    hold_text: bool = False  # streams send nothing until their last token is there, as a tool parser may
    drop_after_tokens: int = 0  # cut streams, without an end, after this many tokens
    seed: int = 0

    def status(self, rng: random.Random) -> int:
        """The HTTP status to fail the next request with; 0 = serve it."""
        if self.error_count > 0:
            self.error_count -= 1
            return self.error_status or 500
        return (self.error_status or 500) if rng.random() < self.error_share else 0


def changed(faults: Faults, fields: Any) -> Faults:
    """`faults` with `fields`. Raises ValueError for an unknown field or a value that does not fit."""
    if not isinstance(fields, dict) or (unknown := set(fields) - set(Faults.__struct_fields__)):
        raise ValueError(f"no such fault: {sorted(unknown) if isinstance(fields, dict) else fields!r}")
    return msgspec.convert(msgspec.to_builtins(faults) | fields, Faults)
