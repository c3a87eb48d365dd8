"""When conversations begin: Poisson, and bursts."""

import random
from collections.abc import Iterator


def poisson(rng: random.Random, per_s: float, duration_s: float) -> Iterator[float]:
    at_s = rng.expovariate(per_s)
    while at_s < duration_s:
        yield at_s
        at_s += rng.expovariate(per_s)


def bursty(
    rng: random.Random, per_s: float, duration_s: float, period_s: float = 20.0, duty: float = 0.2
) -> Iterator[float]:
    """The same mean rate, but four fifths of it in the first `duty` of each period."""
    high, low = 0.8 / duty, 0.2 / (1 - duty)
    for at_s in poisson(rng, per_s * high, duration_s):
        in_burst = at_s % period_s < duty * period_s
        if in_burst or rng.random() < low / high:
            yield at_s
