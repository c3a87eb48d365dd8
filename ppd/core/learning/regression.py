"""Least squares over a few features that forgets: every observation weighs less than the one after it."""

from collections.abc import Sequence

import msgspec


class Regression(msgspec.Struct):
    """Normal equations with exponential forgetting, solved when asked."""

    moments: list[list[float]]  # sum of w * x x', square
    targets: list[float]  # sum of w * x y
    n: float = 0.0

    @classmethod
    def empty(cls, features: int) -> "Regression":
        return cls([[0.0] * features for _ in range(features)], [0.0] * features)

    def observe(self, x: tuple[float, ...], y: float, keep: float) -> None:
        """`keep`: the share of what was known that stays, such as 0.99 for a memory of a hundred."""
        self.n = keep * self.n + 1.0
        for i, xi in enumerate(x):
            self.targets[i] = keep * self.targets[i] + xi * y
            row = self.moments[i]
            for j, xj in enumerate(x):
                row[j] = keep * row[j] + xi * xj

    def solve(
        self, toward: Sequence[float] = (), ridge: float = 0.01, weights: Sequence[float] = ()
    ) -> list[float]:
        """The coefficients; `toward` (or zeros) where nothing was observed.

        The first feature is the constant 1. The others' slopes are drawn to `toward` as far as the feature
        did not vary: by `ridge` against its squared mean. So what never varied is left to the constant.
        `weights` draw them there in any case: each is the squared noise of the target over the squared doubt
        in `toward`, as in a Bayesian prior.
        """
        size = len(self.targets)
        a = [[*row, target] for row, target in zip(self.moments, self.targets, strict=True)]
        for i in range(size):
            mean_square = self.moments[i][0] ** 2 / self.n if i and self.n else 0.0
            weight = ridge * mean_square + 1e-9 + (weights[i] if weights else 0.0)
            a[i][i] += weight
            a[i][size] += weight * (toward[i] if toward else 0.0)
        for i in range(size):
            pivot = max(range(i, size), key=lambda r: abs(a[r][i]))
            a[i], a[pivot] = a[pivot], a[i]
            for r in range(i + 1, size):
                factor = a[r][i] / a[i][i]
                for c in range(i, size + 1):
                    a[r][c] -= factor * a[i][c]
        found = [0.0] * size
        for i in reversed(range(size)):
            found[i] = (a[i][size] - sum(a[i][c] * found[c] for c in range(i + 1, size))) / a[i][i]
        return found
