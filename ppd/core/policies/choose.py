"""From expectations to a path: limits first, as far as they are at risk; then the best score."""

from collections.abc import Iterable, Mapping

from ppd.core.decision import Expected, Weights
from ppd.core.names import Route
from ppd.core.score import risk, score

NEGLIGIBLE = 0.0015  # of a turn: paths whose risks differ by less are equally safe


def best(expected: Mapping[Route, Expected], candidates: Iterable[Route], weights: Weights) -> Route:
    """The best of `candidates`, all of which are in `expected`, as P->D is.

    Among those that put the class's limits at no more risk than the safest does, the one of the highest
    score: P->D scores 0, another path has to be above it.
    """
    kept = list(candidates)
    if weights.ttft_limit_ms or weights.tpot_limit_ms:
        risks = [risk(expected[path], weights) for path in kept]
        bearable = min(risks) + NEGLIGIBLE
        kept = [path for path, r in zip(kept, risks, strict=True) if r <= bearable]
    x0 = expected[Route.P_D]
    chosen, top = kept[0], float("-inf")
    for path in kept:
        s = 0.0 if path is Route.P_D else score(x0, expected[path], weights.ttft, weights.tpot)
        if s > top:
            chosen, top = path, s
    return chosen
