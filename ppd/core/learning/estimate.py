"""A mean and spread that forget: by age and, through a bound on their count, by what came since."""

import msgspec

_OUTLIER_SD = 6.0
_OUTLIER_AFTER = 16.0


class Decayed(msgspec.Struct):
    """Weighted mean and variance of what was observed; `n` is the weight left, in observations."""

    n: float = 0.0
    mean: float = 0.0
    var: float = 0.0
    at_s: float = 0.0  # when it was last touched

    def weight(self, now_s: float, half_life_s: float) -> float:
        """What `n` is worth at `now_s`."""
        return self.n * 0.5 ** (max(0.0, now_s - self.at_s) / half_life_s) if self.n else 0.0

    def observe(self, value: float, now_s: float, half_life_s: float, max_n: float) -> None:
        """Take in `value`. With `max_n` reached, the newest has a share of 1 / max_n.

        One that lies far outside what many others were is clipped, so that a single stall does not count
        for as much as a hundred turns; a lasting change gets through, since each clipped value widens the
        spread.
        """
        n = min(self.weight(now_s, half_life_s), max_n - 1.0)
        if n >= _OUTLIER_AFTER:
            reach = _OUTLIER_SD * max(self.var**0.5, 0.05 * abs(self.mean))
            value = min(max(value, self.mean - reach), self.mean + reach)
        delta = value - self.mean
        self.mean += delta / (n + 1.0)
        self.var = (n * self.var + delta * (value - self.mean)) / (n + 1.0)
        self.n = n + 1.0
        self.at_s = max(self.at_s, now_s)

    def forget(self, left: float) -> None:
        """Keep the mean as a guess that is worth at most `left` observations."""
        self.n = min(self.n, left)
