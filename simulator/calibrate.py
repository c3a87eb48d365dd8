"""Fit the handful of global constants on a part of the sweep; judge them on the rest.

The part is drawn by workload and rate, so that neither placement nor point is known to the fit by accident.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from math import log
from statistics import fmean, median

import msgspec

from ppd.core.report import FAMILIES
from ppd.core.seeds.sweep import Point
from simulator.sweep import Constants, run

TRAIN_SHARE = 0.05
_BOUND = 0.3
HYBRIDS = frozenset(FAMILIES["hybrid"])
BANDS = {"0.5-2": (0.5, 2.0), "4-8": (4.0, 8.0), "10-20": (10.0, 20.0)}
_STEPS = (1.12, 1.04)  # factors by which a constant is tried up and down, round by round
_FITTED = tuple(Constants.__struct_fields__)


def split(points: Iterable[Point], seed: int = 0) -> tuple[list[Point], list[Point]]:
    """Usable points for the fit, and the others; the same for the same seed."""
    rng = random.Random(seed)
    train: list[Point] = []
    held_out: list[Point] = []
    for point in points:
        chosen = rng.random() < TRAIN_SHARE  # drawn for unusable ones too: no point's part depends on another
        if point.usable:
            (train if chosen else held_out).append(point)
    return train, held_out


class Error(msgspec.Struct, frozen=True):
    """One point's relative errors of turn 2, signed."""

    measured: Point
    simulated: Point

    @property
    def ttft(self) -> float:
        return self.simulated.ttft_ms / self.measured.ttft_ms - 1

    @property
    def ttft_p50(self) -> float:
        return self.simulated.ttft_p50_ms / self.measured.ttft_p50_ms - 1

    @property
    def tpot(self) -> float:
        return self.simulated.tpot_ms / self.measured.tpot_ms - 1


def errors(
    points: Sequence[Point], constants: Constants, seed: int = 0, processes: int = 1
) -> Iterable[Error]:
    """Each point's errors, as it is done."""
    wanted = [(p.config, p.workload, p.qps) for p in points]
    for measured, simulated in zip(points, run(wanted, constants, seed, processes), strict=True):
        yield Error(measured, simulated)


def loss(found: Iterable[Error]) -> float:
    """Mean absolute log error of turn-2 TTFT and TPOT, each point's bounded: what the model lacks altogether
    must not bend the constants of what it has."""
    return fmean(min(abs(log(1 + e.ttft)), _BOUND) + 2 * min(abs(log(1 + e.tpot)), _BOUND) for e in found)


def fit(train: Sequence[Point], start: Constants, tell: Callable[[str], None] = lambda _: None) -> Constants:
    """Coordinate descent from `start`; deterministic."""
    best, best_loss = start, loss(errors(train, start))
    for factor in _STEPS:
        for name in _FITTED:
            for f in (factor, 1 / factor):
                while True:
                    tried = msgspec.structs.replace(best, **{name: round(getattr(best, name) * f, 4)})
                    tried_loss = loss(errors(train, tried))
                    if tried_loss >= best_loss:
                        break
                    best, best_loss = tried, tried_loss
                    tell(f"{best_loss:.4f} {name}={getattr(best, name):g}")
    return best


class Band(msgspec.Struct, frozen=True):
    """One placement and QPS band: medians of the absolute relative errors, and of the signed ones."""

    config: str
    band: str
    points: int
    ttft: float
    ttft_p50: float
    tpot: float
    ttft_bias: float
    tpot_bias: float


def bands(found: Sequence[Error]) -> list[Band]:
    out = []
    for config in dict.fromkeys(e.measured.config for e in found):
        for name, (low, high) in BANDS.items():
            part = [e for e in found if e.measured.config == config and low <= e.measured.qps <= high]
            if part:
                out.append(
                    Band(
                        config,
                        name,
                        len(part),
                        median(abs(e.ttft) for e in part),
                        median(abs(e.ttft_p50) for e in part),
                        median(abs(e.tpot) for e in part),
                        median(e.ttft for e in part),
                        median(e.tpot for e in part),
                    )
                )
    return out
