"""Fit the handful of global constants on a part of the sweep; judge them on the rest.

A measured point is one draw of its arrivals, and so is a simulated one. Which arrivals were measured is not
known, so a prediction is the middle of several seeds: the doubt in it then is the measured point's own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from math import log
from statistics import fmean, median

import msgspec

from ppd.core.report import FAMILIES
from ppd.core.seeds.sweep import Point
from simulator.sweep import Constants, run

TRAIN_SHARE = 0.2
SEEDS = (0, 1, 2)
_BOUND = 0.3
HYBRIDS = frozenset(FAMILIES["hybrid"])
BANDS = {"0.5-2": (0.5, 2.0), "4-8": (4.0, 8.0), "10-20": (10.0, 20.0)}
_STEPS = (1.12, 1.04)  # factors by which a constant is tried up and down, round by round
_FITTED = tuple(Constants.__struct_fields__)


def split(points: Iterable[Point]) -> tuple[list[Point], list[Point]]:
    """Usable points for the fit, and the others. A point's part hangs on its own name alone."""
    train: list[Point] = []
    held_out: list[Point] = []
    for point in points:
        if point.usable:
            (train if _draw(point) < TRAIN_SHARE else held_out).append(point)
    return train, held_out


def _draw(point: Point) -> float:
    name = f"{point.config} {point.workload} {point.qps:g}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64


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


def chats(point: Point) -> int:
    """How many a measured point had, failed ones too."""
    return round(point.n / (point.success_pct / 100))


def errors(
    points: Sequence[Point], constants: Constants, seeds: Sequence[int] = SEEDS, processes: int = 1
) -> Iterator[Error]:
    """Each point's errors, as it is done. How many chats a point had is taken from the measurement: it is
    what the engines were given, not what they made of it."""
    wanted = [(p.config, p.workload, p.qps) for p in points]
    simulated = run(wanted, constants, seeds, processes, [chats(p) for p in points])
    for measured, predicted in zip(points, simulated, strict=True):
        yield Error(measured, predicted)


def loss(found: Iterable[Error]) -> float:
    """Mean absolute log error of turn-2 TTFT, a point's mean and its median, and TPOT. Each point's is
    bounded: what the model lacks altogether must not bend the constants of what it has."""

    def off(error: float) -> float:
        return min(abs(log(1 + error)), _BOUND)

    return fmean(off(e.ttft) + 0.7 * off(e.ttft_p50) + 2 * off(e.tpot) for e in found)


def fit(
    train: Sequence[Point],
    start: Constants,
    seeds: Sequence[int] = SEEDS,
    processes: int = 1,
    tell: Callable[[float, Constants], None] = lambda _loss, _constants: None,
) -> Constants:
    """Coordinate descent from `start`; deterministic. `tell` hears of each step that is kept."""

    def of(constants: Constants) -> float:
        return loss(errors(train, constants, seeds, processes))

    best, best_loss = start, of(start)
    tell(best_loss, best)
    for factor in _STEPS:
        for name in _FITTED:
            for f in (factor, 1 / factor):
                moved = False
                while True:
                    tried = msgspec.structs.replace(best, **{name: float(f"{getattr(best, name) * f:.4g}")})
                    tried_loss = of(tried)
                    if tried_loss >= best_loss:
                        break
                    best, best_loss, moved = tried, tried_loss, True
                    tell(best_loss, best)
                if moved:  # then the other way is worse
                    break
    return best


def noise(points: Iterable[Point]) -> dict[tuple[str, str], float]:
    """How far a measured TTFT lies from where its neighbours in rate put it, by placement and band: the
    median, relative, brought down to the one point's part. No model smooth in the rate errs by less."""
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        lines.setdefault((point.config, point.workload), []).append(point)
    found: dict[tuple[str, str], list[float]] = {}
    for line in lines.values():
        line.sort(key=lambda p: p.qps)
        for a, p, b in zip(line, line[1:], line[2:], strict=False):
            if not (a.usable and p.usable and b.usable):
                continue
            part = log(p.qps / a.qps) / log(b.qps / a.qps)
            off = log(p.ttft_ms) - (1 - part) * log(a.ttft_ms) - part * log(b.ttft_ms)
            one = abs(off) / (1 + part**2 + (1 - part) ** 2) ** 0.5
            found.setdefault((p.config, _band(p.qps)), []).append(one)
    return {key: median(each) for key, each in found.items()}


def _band(qps: float) -> str:
    return next(name for name, (low, high) in BANDS.items() if low <= qps <= high)


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
