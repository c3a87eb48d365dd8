"""What is not known when a turn is placed: how long its answer will be, and how busy the service is."""

from collections.abc import MutableMapping

_FIRST_GUESS_TOKENS = 128.0
_MODEL_WEIGHT = 0.05  # of the newest answer in a model's mean
_SESSION_WEIGHT = 0.4  # answers of one conversation resemble each other, and drift with it
_MAX_MODELS = 256


def blend(mean: float, newest: float, weight: float) -> float:
    """An exponentially weighted mean; 0 = nothing seen yet."""
    return newest if mean <= 0 else mean + weight * (newest - mean)


def session_mean(mean: float, newest_tokens: int) -> float:
    """A session's mean answer length, in tokens, after one more answer."""
    return blend(mean, float(newest_tokens), _SESSION_WEIGHT)


class OutputPredictor:
    """Predicts answer lengths, in tokens, from a session's and a model's running means."""

    def __init__(self) -> None:
        self._means: MutableMapping[str, float] = {}

    def observe(self, model: str, n_out_tokens: int) -> None:
        if model in self._means or len(self._means) < _MAX_MODELS:
            self._means[model] = blend(self._means.get(model, 0.0), float(n_out_tokens), _MODEL_WEIGHT)

    def mean(self, model: str) -> float:
        """Recent mean of this model's output tokens; 0 = none seen yet."""
        return self._means.get(model, 0.0)

    def predict(self, model: str, session_mean_tokens: float, limit_tokens: int | None) -> int:
        """The session's own mean, else the model's, else a guess; never above the request's limit."""
        guess = session_mean_tokens or self.mean(model) or _FIRST_GUESS_TOKENS
        return max(1, round(guess if limit_tokens is None else min(guess, limit_tokens)))


class RateWindow:
    """Events a second over a sliding window, in buckets of a second: fixed memory at any rate."""

    def __init__(self, window_s: int = 30) -> None:
        self._counts = [0] * window_s
        self._second = 0
        self._since_s: float | None = None
        self._total = 0

    def _advance(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s, self._second = now_s, int(now_s)
        if now_s < self._second + 1:
            return
        size = len(self._counts)
        for second in range(self._second + 1, min(int(now_s), self._second + size) + 1):
            self._total -= self._counts[second % size]
            self._counts[second % size] = 0
        self._second = max(self._second, int(now_s))

    def add(self, now_s: float) -> None:
        self._advance(now_s)
        self._counts[self._second % len(self._counts)] += 1
        self._total += 1

    def rate(self, now_s: float) -> float:
        """Events a second; over the time since the first event while that is shorter than the window."""
        if self._since_s is None:
            return 0.0
        self._advance(now_s)
        return self._total / min(max(now_s - self._since_s, 1.0), float(len(self._counts)))
