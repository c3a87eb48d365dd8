"""What a token that D prefills itself costs the other streams of that D.

While D computes a prompt, every stream that it decodes waits. If a prefilled token holds them up by p ms and
u tokens a second are prefilled, a fraction u p / 1000 of the time is lost, and the inter-token latency is
that of the batch alone, times 1 + u p / 1000. From load reports, per D:

    itl = a + b * batch + (c + d * batch) * u        p(batch) = 1000 (c + d * batch) / (a + b * batch)

A turn that is prefilled locally is charged the time that it took from others, spread over its own tokens:
p * computed tokens * other streams / output tokens. If all turns did so, the mean TPOT over all streams would
rise by just that.
"""

import msgspec

from ppd.core.learning.regression import Regression
from ppd.core.records import WorkerLoad

_KEEP = 0.995  # of two hundred windows
_EVERY_S = 2.0  # reports are means over about ten seconds: nearer ones say the same again
_ENOUGH = 20.0
_MIN_OUT = 32  # tokens; a shorter answer would make any prefill look endless
_MAX_PAUSE_MS = 100.0  # a token; beyond lies a broken fit
_MAX_ITL_MS = 1e5
_MAX_RATE = 1e7


class Interference(msgspec.Struct):
    """One D's. Units: ms, tokens, streams, tokens a second."""

    fit: Regression = msgspec.field(default_factory=lambda: Regression.empty(4))
    line: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)  # a, b, c, d
    at_s: float = -1e9
    batch: float = 0.0  # of late
    prefilling: float = 0.0  # of late, a mean of u
    speed_pause_ms: float = 0.0  # ms a token by D's own prefill speed, until the fit is good

    def observe(self, load: WorkerLoad, now_s: float) -> None:
        """Take in a report; those that come sooner than 2 s after the last one used are passed over."""
        if now_s - self.at_s < _EVERY_S or not _plausible(load):
            return
        self.at_s = now_s
        batch = load.decode_tokens_per_s * load.itl_ms / 1e3 or float(load.running)
        u = load.prefill_tokens_per_s
        self.fit.observe((1.0, batch, u, u * batch), load.itl_ms, _KEEP)
        self.line = tuple(self.fit.solve())
        self.batch += 0.1 * (batch - self.batch)
        self.prefilling += 0.1 * (u - self.prefilling)
        if load.prefill_speed_tokens_per_s > 0:
            self.speed_pause_ms = 1e3 / load.prefill_speed_tokens_per_s

    def pause_ms(self, batch: float) -> float:
        """How long one locally prefilled token holds up each stream of a batch; 0 while nothing is known."""
        if self.fit.n < _ENOUGH:
            return self.speed_pause_ms
        a, b, c, d = self.line
        alone_ms = a + b * batch
        if alone_ms <= 0:
            return self.speed_pause_ms
        return min(max(0.0, 1e3 * (c + d * batch) / alone_ms), _MAX_PAUSE_MS)


def _plausible(load: WorkerLoad) -> bool:
    return (
        0 < load.itl_ms <= _MAX_ITL_MS
        and 0 <= load.prefill_tokens_per_s <= _MAX_RATE
        and 0 <= load.decode_tokens_per_s <= _MAX_RATE
    )


def charge_ms(pause_ms: float, computed: int, others: float, n_out: int) -> float:
    """What a local prefill of `computed` tokens adds to its turn's TPOT for the `others` that it held up."""
    return pause_ms * computed * others / max(n_out, _MIN_OUT)
