"""From expectations to a path: the best score among those that keep the class's limits."""

from collections.abc import Iterable, Mapping

from ppd.core.decision import Expected, Weights
from ppd.core.names import Path
from ppd.core.score import misses, score


def best(expected: Mapping[Path, Expected], candidates: Iterable[Path], weights: Weights) -> Path:
    """The best of `candidates`, all of which are in `expected`, as P->D is.

    P->D scores 0; another path has to be above it. A path that is expected to break a limit is taken only
    where all are.
    """
    kept = list(candidates)
    if weights.ttft_limit_ms or weights.tpot_limit_ms:
        kept = [path for path in kept if not misses(expected[path], weights)] or kept
    x0 = expected[Path.P_D]
    chosen, top = kept[0], float("-inf")
    for path in kept:
        s = 0.0 if path is Path.P_D else score(x0, expected[path], weights.ttft, weights.tpot)
        if s > top:
            chosen, top = path, s
    return chosen
