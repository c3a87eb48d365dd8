"""What a token that D prefills itself costs the other streams of that D.

While D computes a prompt, every stream that it decodes waits. In the time between two tokens of a stream D
also prefills u * itl tokens, at u tokens a second, and each of them holds the stream up by p ms:

    itl = a + b * batch + p * (u * itl)

A line over three features of the load reports, per D, with all but p being what the batch alone costs.

A turn that is prefilled locally is charged the time that it took from others, spread over the tokens that D
decodes for each such prefill: p * computed tokens * other streams / decoded tokens. If all turns did so, the
TPOT of every stream would rise by just that, and that is what a table's x = 1 was measured under.
"""

import msgspec

from ppd.core.learning.regression import Regression
from ppd.core.records import WorkerLoad

_KEEP = 0.995  # of two hundred windows
_EVERY_S = 2.0  # reports are means over about ten seconds: nearer ones say the same again
_MIN_OUT = 32  # tokens; fewer would make any prefill look endless
_NOISE = 0.05  # of an inter-token latency, from one report to the next
_MAX_PAUSE_MS = 100.0  # a token; beyond lies a broken fit
_MAX_ITL_MS = 1e5
_MAX_RATE = 1e7


class Interference(msgspec.Struct):
    """One D's. Units: ms, tokens, streams, tokens a second."""

    fit: Regression = msgspec.field(default_factory=lambda: Regression.empty(3))
    at_s: float = -1e9
    speed_ms: float = 0.0  # a token, by D's own prefill speed: what p is taken for until the fit knows better
    pause_ms: float = 0.0  # p: how long a locally prefilled token holds up each stream of the batch
    batch_ms: float = 0.0  # b: by how much one more stream slows each of the others' tokens

    def observe(self, load: WorkerLoad, now_s: float) -> None:
        """Take in a report; those that come sooner than 2 s after the last one used are passed over."""
        if now_s - self.at_s < _EVERY_S or not _plausible(load):
            return
        self.at_s = now_s
        batch = load.decode_tokens_per_s * load.itl_ms / 1e3 or float(load.running)
        u = load.prefill_tokens_per_s
        if load.prefill_speed_tokens_per_s > 0:
            self.speed_ms = min(1e3 / load.prefill_speed_tokens_per_s, _MAX_PAUSE_MS)
        self.fit.observe((1.0, batch, u * load.itl_ms / 1e3), load.itl_ms, _KEEP)
        # Few local prefills say little of what one costs: the speed is believed as far as they do not.
        sure = (_NOISE * load.itl_ms / self.speed_ms) ** 2 if self.speed_ms else 0.0
        _, batch_ms, pause_ms = self.fit.solve((0.0, 0.0, self.speed_ms), weights=(0.0, 0.0, sure))
        self.batch_ms = min(max(0.0, batch_ms), _MAX_PAUSE_MS)
        self.pause_ms = min(max(0.0, pause_ms), _MAX_PAUSE_MS)


def _plausible(load: WorkerLoad) -> bool:
    return (
        0 < load.itl_ms <= _MAX_ITL_MS
        and 0 <= load.prefill_tokens_per_s <= _MAX_RATE
        and 0 <= load.decode_tokens_per_s <= _MAX_RATE
    )


def charge_ms(pause_ms: float, computed: int, others: float, decoded: float) -> float:
    """What a local prefill of `computed` tokens adds to its turn's TPOT for the `others` that it held up.

    `decoded`: tokens that D decodes for each local prefill, of first turns too, which have none themselves.
    """
    return pause_ms * computed * others / max(decoded, _MIN_OUT)
