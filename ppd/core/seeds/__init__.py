"""The seed tables that are shipped: where a cluster starts before anything was measured on it."""

import gzip
from importlib import resources
from math import log2

import msgspec

from ppd.core import records
from ppd.core.placement import Placement, parse_placement
from ppd.core.records import TableSnapshot

HARDWARE = "h100-llama-3.1-8b"
MODEL = "meta-llama/Llama-3.1-8B"
PLACEMENTS = ("1P3D", "2P2D", "3P1D")
_SUFFIX = ".json.gz"


class UnknownSeedError(LookupError):
    """There is no seed table of this name; the message lists those that there are."""


def names() -> tuple[str, ...]:
    return tuple(name(placement) for placement in PLACEMENTS)


def name(placement: str) -> str:
    return f"{HARDWARE}-{placement}"


def load(seed: str) -> TableSnapshot:
    """The seed table called `seed`, as it was measured. Raises UnknownSeedError."""
    if seed not in names():
        raise UnknownSeedError(f"there is no seed table {seed!r}: choose from {', '.join(names())}")
    data = resources.files(__package__).joinpath(seed + _SUFFIX).read_bytes()
    return records.decode(gzip.decompress(data), TableSnapshot)


def encode(snapshot: TableSnapshot) -> bytes:
    """`snapshot` as a shipped file; the same table gives the same bytes."""
    return gzip.compress(records.encode(snapshot), 9, mtime=0)


def nearest(placement: Placement, model: str, version: int = 1) -> TableSnapshot:
    """A first table for `placement` and `model`: the seed whose proportion of P to D is nearest.

    Its source says where the figures come from. They are another model's, on other hardware, at the rates
    of four GPUs: a start for the online loop and no more. A placement without P or without D, which has
    nothing to decide, gets the even one.
    """
    chosen = min(PLACEMENTS, key=lambda p: abs(_proportion(placement) - _proportion(parse_placement(p))))
    source = f"seed {name(chosen)}"
    if str(placement) != chosen:
        source += f", the nearest to {placement} by P:D"
    return msgspec.structs.replace(
        load(name(chosen)), model=model, placement=str(placement), version=version, source=source
    )


def _proportion(placement: Placement) -> float:
    """Doublings between P and D."""
    if not placement.prefill or not placement.decode:
        return 0.0
    return log2(placement.prefill / placement.decode)
