"""The published sweep that the seed tables come from: turn-2 figures of 3,060 points on 4 x H100.

From the released results of arXiv:2603.13358 (Apache-2.0): Llama-3.1-8B, 17 placements x 18 workloads x 10
QPS levels, about 10 s a point. A placement is written as there: `1P_3D` sends every later turn through P
(x = 0), in `1P_3pD` the decode workers append-prefill themselves (x = 1).
"""

import gzip
from functools import cache
from importlib import resources

import msgspec

FILE = "h100_sweep.json.gz"
USABLE_PCT = 90.0


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One placement under one workload at one rate. Times in ms; `n` is how many second turns succeeded."""

    config: str
    workload: str  # {small|large}_{type}
    qps: float
    n: int
    ttft_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    tokens_per_s: float
    success_pct: float

    @property
    def crashed(self) -> bool:
        """No second turn came through, or none of more than one token: the engines had failed."""
        return self.n == 0 or self.ttft_ms <= 0 or self.tpot_ms <= 0

    @property
    def usable(self) -> bool:
        """At least 90 % of the requests succeeded; below, the survivors' mean flatters the placement."""
        return not self.crashed and self.success_pct >= USABLE_PCT


Key = tuple[str, str, float]  # config, workload, qps


@cache
def points() -> dict[Key, Point]:
    """Every point by (config, workload, qps). Read once; do not change it."""
    return decode(resources.files(__package__).joinpath(FILE).read_bytes())


def encode(listed: list[Point]) -> bytes:
    """`listed` as the shipped file; the same points give the same bytes."""
    return gzip.compress(msgspec.json.encode(listed), 9, mtime=0)


def decode(data: bytes) -> dict[Key, Point]:
    listed = msgspec.json.decode(gzip.decompress(data), type=list[Point])
    return {(p.config, p.workload, p.qps): p for p in listed}
