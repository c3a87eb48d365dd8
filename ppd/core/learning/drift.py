"""Drift: a lasting shift of what is measured against what was expected, by a two-sided cumulative sum."""

from math import log

import msgspec

from ppd.core.learning.estimate import Decayed

_SLACK = 0.75  # standard deviations that a shift must have to count
_ALARM = 12.0
_MAX_STEP = 4.0  # so that one outlier cannot raise the alarm
_ARMED_AFTER = 30.0
_MIN_SD = 0.05
_WINDOW = 300.0
_HALF_LIFE_S = 3600.0


class Drift(msgspec.Struct):
    """Watches the logarithm of measured over expected, of one path and one quantity."""

    residual: Decayed = msgspec.field(default_factory=Decayed)
    up: float = 0.0
    down: float = 0.0
    alarms: int = 0

    def observe(self, measured: float, expected: float, now_s: float) -> bool:
        """Whether this observation raises the alarm, which also resets the sums."""
        value = log(measured / expected)
        alarm = False
        if self.residual.n >= _ARMED_AFTER:
            sd = max(self.residual.var**0.5, _MIN_SD)
            step = min(max((value - self.residual.mean) / sd, -_MAX_STEP), _MAX_STEP)
            self.up = max(0.0, self.up + step - _SLACK)
            self.down = max(0.0, self.down - step - _SLACK)
            alarm = max(self.up, self.down) > _ALARM
        if alarm:
            self.up = self.down = 0.0
            self.alarms += 1
            self.residual = Decayed()
        self.residual.observe(value, now_s, _HALF_LIFE_S, _WINDOW)
        return alarm
