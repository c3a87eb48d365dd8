"""What a path costs, what an operator cares for, and the score that weighs one against the other."""

from math import exp, log1p

import msgspec

from ppd.core.records import TableSnapshot

DEFAULT_SLO = "balanced"
_TTFT_SPREAD = 0.1  # of a limit: how exact expectations are; those of TPOT are means over many steps
_TPOT_SPREAD = 0.05
_LATER = 0.1  # of a turn: what a first token costs for each limit by which it is late
_FAR = 30.0


class Weights(msgspec.Struct, frozen=True):
    """How much an operator, or an SLO class, cares for TTFT against TPOT; limits in ms, 0 = none."""

    ttft: float = 1.0
    tpot: float = 1.0
    ttft_limit_ms: float = 0.0
    tpot_limit_ms: float = 0.0


SLO_CLASSES = {
    "interactive": Weights(ttft=2.0, tpot=1.0),
    DEFAULT_SLO: Weights(),
    "batch": Weights(ttft=1.0, tpot=4.0),
}


class Expected(msgspec.Struct, frozen=True):
    """What a path is expected to cost this turn, in ms."""

    ttft_ms: float
    tpot_ms: float


def slo_classes(snapshot: TableSnapshot | None = None) -> dict[str, Weights]:
    """The SLO classes by name: the built-in ones, with the weights and limits that `snapshot` carries."""
    classes = dict(SLO_CLASSES)
    if snapshot is not None:
        for name, (ttft, tpot) in snapshot.weights.items():
            classes[name] = msgspec.structs.replace(classes.get(name, Weights()), ttft=ttft, tpot=tpot)
        for name, (ttft_ms, tpot_ms) in snapshot.limits.items():
            known = classes.get(name, Weights())
            classes[name] = msgspec.structs.replace(known, ttft_limit_ms=ttft_ms, tpot_limit_ms=tpot_ms)
    return classes


def delta_ttft(x0: Expected, x1: Expected) -> float:
    """The share of P->D's TTFT that the other path saves; below 0 it costs more."""
    return (x0.ttft_ms - x1.ttft_ms) / x0.ttft_ms


def delta_tpot(x0: Expected, x1: Expected) -> float:
    """The share of P->D's TPOT that the other path adds."""
    return (x1.tpot_ms - x0.tpot_ms) / x0.tpot_ms


def score(x0: Expected, x1: Expected, w_ttft: float, w_tpot: float) -> float:
    """S = w_ttft * delta_ttft - w_tpot * delta_tpot (arXiv:2603.13358, Algorithm 1); > 0 speaks for `x1`.

    `x0` is what P->D costs, with both figures above 0.
    """
    return w_ttft * delta_ttft(x0, x1) - w_tpot * delta_tpot(x0, x1)


def misses(expected: Expected, weights: Weights, share: float = 1.0) -> bool:
    """Whether a path is expected to go beyond `share` of one of the class's limits."""
    return bool(
        (weights.ttft_limit_ms and expected.ttft_ms > share * weights.ttft_limit_ms)
        or (weights.tpot_limit_ms and expected.tpot_ms > share * weights.tpot_limit_ms)
    )


def risk(expected: Expected, weights: Weights) -> float:
    """About how many turns would miss a limit of the class if a turn took this path: 0 without limits.

    A late first token costs this one turn: the chance of it, a half where what is expected is the limit
    itself, and little more for how late it is, so that of two late ones the sooner is preferred. TPOT holds
    what the path does to all streams of its D (`ppd.core.live`), so one turn is no bound: beyond the limit
    the risk goes on as steeply as the chance of a miss rises there.
    """
    found = 0.0
    if weights.ttft_limit_ms:
        late = expected.ttft_ms / weights.ttft_limit_ms - 1.0
        found += _chance(late / _TTFT_SPREAD) + _LATER * max(0.0, late)
    if weights.tpot_limit_ms:
        found += 0.25 * _excess((expected.tpot_ms / weights.tpot_limit_ms - 1.0) / _TPOT_SPREAD)
    return found


def _chance(x: float) -> float:
    """The logistic curve; its steepest slope is a quarter."""
    return 1.0 / (1.0 + exp(-min(max(x, -_FAR), _FAR)))


def _excess(x: float) -> float:
    """max(0, x), with a soft corner."""
    return x if x > _FAR else log1p(exp(x))


def near_limit(expected: Expected, weights: Weights) -> bool:
    """Whether a path comes within a fifth of a limit, or breaks it."""
    return misses(expected, weights, share=0.8)
