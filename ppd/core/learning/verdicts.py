"""Hysteresis: a verdict changes only on evidence; a cell without it keeps its verdict at a new scale."""

from collections.abc import Mapping

import msgspec

from ppd.core.learning.ratios import Belief
from ppd.core.names import Route
from ppd.core.score import Expected, Weights, score

SIGMAS = 2.0  # standard errors that a score must lie beyond 0 before its verdict changes
MARGIN = 0.03  # and how far it must lie there at least
_STEPS = 40
MIN_TURNS = 8.0  # a cell's own turns on the path that it would leave


class Cost(msgspec.Struct, frozen=True):
    """What one path is believed to cost in one cell, in ms, with its two ratios' beliefs."""

    expected: Expected
    ttft: Belief
    tpot: Belief


def score_error(x0: Cost, x1: Cost, weights: Weights) -> float:
    """The standard error of the score, to first order."""
    t = x1.expected.ttft_ms / x0.expected.ttft_ms
    l = x1.expected.tpot_ms / x0.expected.tpot_ms  # noqa: E741
    ttft = (weights.ttft * t) ** 2 * (x0.ttft.error**2 + x1.ttft.error**2)
    tpot = (weights.tpot * l) ** 2 * (x0.tpot.error**2 + x1.tpot.error**2)
    return float((ttft + tpot) ** 0.5)


def changes(
    before: Mapping[Route, Expected], now: Mapping[Route, Cost], classes: Mapping[str, Weights]
) -> tuple[list[str], list[str]]:
    """The SLO classes whose verdict in a cell would change: with evidence, and without."""
    proven: list[str] = []
    unproven: list[str] = []
    for name, weights in classes.items():
        was = score(before[Route.P_D], before[Route.D_LOCAL], weights.ttft, weights.tpot) > 0
        x0, x1 = now[Route.P_D], now[Route.D_LOCAL]
        s = score(x0.expected, x1.expected, weights.ttft, weights.tpot)
        if (s > 0) == was:
            continue
        left = now[Route.D_LOCAL if was else Route.P_D]
        enough = abs(s) > max(MARGIN, SIGMAS * score_error(x0, x1, weights)) and left.ttft.n >= MIN_TURNS
        (proven if enough else unproven).append(name)
    return proven, unproven


def settled(
    before: Mapping[Route, Expected], now: Mapping[Route, Cost], classes: Mapping[str, Weights]
) -> tuple[dict[Route, Expected], list[str]]:
    """The figures to publish for a cell, and the SLO classes whose verdict they change.

    All classes share the figures, and evidence for one may be none for another. So the figures go as far from
    the old verdicts towards what is believed as leaves the unproven ones where they are: all the way without
    unproven ones, and not at all without proven ones. Where the proven ones cannot change alone, all do.
    """
    proven, unproven = changes(before, now, classes)
    believed = {path: cost.expected for path, cost in now.items()}
    if not unproven:
        return believed, proven
    start = rescaled(before, now)
    if not proven:
        return start, []
    for step in range(_STEPS - 1, 0, -1):
        between = _between(start, believed, step / _STEPS)
        if set(_changed(before, between, classes)) == set(proven):
            return between, proven
    return believed, proven


def _changed(
    before: Mapping[Route, Expected], after: Mapping[Route, Expected], classes: Mapping[str, Weights]
) -> list[str]:
    def local(figures: Mapping[Route, Expected], weights: Weights) -> bool:
        return score(figures[Route.P_D], figures[Route.D_LOCAL], weights.ttft, weights.tpot) > 0

    return [name for name, weights in classes.items() if local(before, weights) is not local(after, weights)]


def _between(
    start: Mapping[Route, Expected], end: Mapping[Route, Expected], share: float
) -> dict[Route, Expected]:
    """Geometrically, since costs differ by factors."""
    return {
        path: Expected(
            start[path].ttft_ms ** (1 - share) * e.ttft_ms**share,
            start[path].tpot_ms ** (1 - share) * e.tpot_ms**share,
        )
        if path in start
        else e
        for path, e in end.items()
    }


def rescaled(before: Mapping[Route, Expected], now: Mapping[Route, Cost]) -> dict[Route, Expected]:
    """`before` at the scale of `now`: all paths by one factor, so that every score stays what it was."""
    ttft = tpot = 1.0
    for path in (Route.P_D, Route.D_LOCAL):
        ttft *= (now[path].expected.ttft_ms / before[path].ttft_ms) ** 0.5
        tpot *= (now[path].expected.tpot_ms / before[path].tpot_ms) ** 0.5
    return {path: Expected(e.ttft_ms * ttft, e.tpot_ms * tpot) for path, e in before.items()}
