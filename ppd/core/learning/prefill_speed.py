"""How fast an engine prefills while it does, from what its requests (or its steps) took.

A prefill takes a time of its own and then its tokens' time: `seconds = a + b * tokens`, and 1 / b is the
speed. Without `a`, a decode worker that is handed its prompts (each with one token to compute) would look
hundreds of times slower than it is. Requests that were prefilled in one step each count its whole time, so
that under a queue the speed is reported too low rather than too high.

A decode worker's prompts are often short and alike, and a few tokens more make no difference that could be
seen among all else that a step waits for. Then no speed is reported: it would be noise, and turns would be
routed by it.
"""

from math import sqrt

from ppd.core.learning.regression import Regression

_KEEP = 0.98  # remembers about fifty readings
_ENOUGH = 8.0
_SURE = 3.0  # standard errors from 0: the speed is right within about a third


class PrefillSpeed:
    """Fitted with forgetting over readings of the engine's counters."""

    def __init__(self) -> None:
        self._fit = Regression.empty(2)
        self._square = 0.0  # of the seconds, summed as the fit forgets

    def observe(self, count: int, tokens: float, seconds: float) -> None:
        """Between two readings of one engine, `count` prefills of `tokens` tokens together took `seconds`."""
        if count > 0:
            self._fit.observe((count, tokens), seconds, _KEEP)
            self._square = _KEEP * self._square + seconds * seconds

    @property
    def tokens_per_s(self) -> float:
        """0 until there are enough readings, and where the prompts are too much alike to tell."""
        if self._fit.n < _ENOUGH:
            return 0.0
        s_per_request, s_per_token = self._fit.solve(ridge=0.0)
        if s_per_token <= max(1e-7, _SURE * self._error_s(s_per_request, s_per_token)):
            return 0.0
        return 1 / s_per_token

    def _error_s(self, s_per_request: float, s_per_token: float) -> float:
        """The standard error of the time a token takes; least squares' own."""
        (requests, both), (_, tokens) = self._fit.moments
        explained = s_per_request * self._fit.targets[0] + s_per_token * self._fit.targets[1]
        variance = max(0.0, self._square - explained) / (self._fit.n - 2)
        spread = tokens - both * both / requests
        return sqrt(variance / spread) if spread > 0 else float("inf")
