"""How fast an engine prefills while it does, from what its requests took.

A request's prefill takes the step's own time and then its tokens' time: `seconds = a + b * tokens`, and
1 / b is the speed. Without `a`, a decode worker that is handed its prompts (each with one token to compute)
would look hundreds of times slower than it is. Requests that were prefilled in one step each count its whole
time, so that under a queue the speed is told too low rather than too high.
"""

from ppd.core.learning.regression import Regression
from workers.engine.metrics import Sample

_KEEP = 0.98  # of fifty readings in which requests ended
_ENOUGH = 8.0


class PrefillSpeed:
    """Fitted with forgetting over readings of the engine's counters."""

    def __init__(self) -> None:
        self._fit = Regression.empty(2)

    def observe(self, then: Sample, now: Sample) -> None:
        """Two readings of one engine, one after the other."""
        ended = now.prefills - then.prefills
        if ended > 0:
            tokens = now.request_prefill_tokens - then.request_prefill_tokens
            self._fit.observe((ended, tokens), now.prefill_s - then.prefill_s, _KEEP)

    @property
    def tokens_per_s(self) -> float:
        """0 until there is enough to go by, and while all prompts are alike."""
        if self._fit.n < _ENOUGH:
            return 0.0
        s_per_token = self._fit.solve()[1]
        return 1 / s_per_token if s_per_token > 1e-7 else 0.0
