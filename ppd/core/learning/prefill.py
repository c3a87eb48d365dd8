"""What a token that P has to compute costs: so that turns with a stale P cache can be compared with others.

The longer a conversation stayed on D, the more of it P lacks, and the dearer P->D is. A cell's figures are
for the tokens that its shape leaves P to compute; a turn with more is brought down to that before it counts,
and the decision adds its own turn's excess again (`ppd.core.live`).
"""

import msgspec

from ppd.core.learning.regression import Regression

_KEEP = 0.998
_ENOUGH = 30.0


class PrefillCost(msgspec.Struct):
    """P->D's TTFT as a line over the tokens that P computed."""

    fit: Regression = msgspec.field(default_factory=lambda: Regression.empty(2))

    def observe(self, computed: int, ttft_ms: float) -> None:
        self.fit.observe((1.0, float(computed)), ttft_ms, _KEEP)

    def ms_per_token(self) -> float:
        """0 until there is enough to go by, and never below."""
        if self.fit.n < _ENOUGH:
            return 0.0
        return max(0.0, self.fit.solve()[1])

    def normalized(self, ttft_ms: float, computed: int, usual: int) -> float:
        """`ttft_ms` as it would have been had P computed `usual` tokens; at least a fifth of it stays."""
        return max(0.2 * ttft_ms, ttft_ms - self.ms_per_token() * (computed - usual))
