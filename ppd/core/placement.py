"""A placement: how many engines of each role, written `2P1D`, `1R`, `1P1D1R`."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import log2

from ppd.core.names import Role

_PART = re.compile(r"([0-9]+)([PDR])")


class PlacementError(ValueError):
    """The text does not name a placement; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class Placement:
    prefill: int = 0
    decode: int = 0
    replica: int = 0

    def __str__(self) -> str:
        parts = ((self.prefill, "P"), (self.decode, "D"), (self.replica, "R"))
        return "".join(f"{n}{letter}" for n, letter in parts if n) or "0R"

    @property
    def size(self) -> int:
        """How many engines it needs."""
        return self.prefill + self.decode + self.replica

    def roles(self) -> list[Role]:
        """One role per engine: prefill first, then decode, then replica."""
        return [Role.PREFILL] * self.prefill + [Role.DECODE] * self.decode + [Role.REPLICA] * self.replica


def parse_placement(text: str) -> Placement:
    """`text` in any order and case, `_` allowed between parts.

    Raises PlacementError for anything else, for more than 64 engines, and for a placement that cannot
    serve a request (prefill without decode, or decode without prefill, when there is no replica).
    """
    compact = text.strip().upper().replace("_", "")
    parts = _PART.findall(compact)
    if not parts or "".join(n + letter for n, letter in parts) != compact:
        raise PlacementError(f"{text!r} is no placement: write for example 1P1D, 2P2D, 1R or 1P1D1R")
    letters = [letter for _, letter in parts]
    if len(set(letters)) != len(letters):
        raise PlacementError(f"{text!r} names a role twice")
    count = {letter: int(n) for n, letter in parts}
    placement = Placement(count.get("P", 0), count.get("D", 0), count.get("R", 0))
    if not 1 <= placement.size <= 64:
        raise PlacementError(f"{text!r} asks for {placement.size} engines: between 1 and 64 are possible")
    if bool(placement.prefill) != bool(placement.decode) and not placement.replica:
        raise PlacementError(f"{text!r} cannot serve: prefill needs decode and the other way round")
    return placement


def placement_of(roles: Iterable[Role]) -> Placement:
    """The placement that a set of running engines makes up."""
    listed = list(roles)
    return Placement(listed.count(Role.PREFILL), listed.count(Role.DECODE), listed.count(Role.REPLICA))


def unlike(placement: Placement, text: str) -> float | None:
    """How far the placement that `text` names is from `placement`, which has P and D: doublings between the
    proportions of P to D, and a tenth of those between the sizes.

    None where `text` is a name of another kind, or a placement without P or D.
    """
    try:
        other = parse_placement(text)
    except PlacementError:
        return None
    if not other.prefill or not other.decode:
        return None
    proportion = (placement.prefill * other.decode) / (placement.decode * other.prefill)
    return abs(log2(proportion)) + 0.1 * abs(log2(placement.size / other.size))
