"""Whether the engine still makes progress: when it made no step for a while it must generate a token."""

import asyncio

from workers.engine.client import EngineClient, EngineError
from workers.engine.metrics import EngineSample


class Pulse:
    """For how long the engine has given no sign of life. Counted is what was really waited for it, so that an
    agent that was itself stopped for a while accuses nobody."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self.stuck_s = 0.0
        self._steps = -1.0

    def missed(self, waited_s: float) -> None:
        """It did not answer."""
        self.silent_s += waited_s

    def answered(self, sample: EngineSample, waited_s: float) -> None:
        """Record an answer that came `waited_s` seconds after the previous one."""
        self.silent_s = 0.0
        moved = sample.steps != self._steps or not sample.running
        self.stuck_s = 0.0 if moved else self.stuck_s + waited_s
        self._steps = sample.steps


class HealthCheck:
    """Follows the engine's step counter; `watch` returns why the engine must be given up."""

    def __init__(self, engine: EngineClient, model: str, every_s: float, hang_s: float) -> None:
        self._engine = engine
        self._model = model
        self._every_s = every_s
        self._hang_s = hang_s
        self._steps = 0.0
        self._moved = False
        self._restarted = False

    def saw(self, sample: EngineSample) -> None:
        """A reading of the engine's metrics, from the load reports."""
        self._moved = self._moved or sample.steps > self._steps
        self._restarted = self._restarted or sample.steps < self._steps
        self._steps = sample.steps

    async def watch(self) -> str:
        """Return, with the cause, once the engine generated nothing within `hang_s` or is another one."""
        while not self._restarted:
            await asyncio.sleep(self._every_s)
            moved, self._moved = self._moved, False
            if moved or self._restarted:
                continue
            try:
                await self._engine.generate(self._model, self._hang_s)
            except EngineError as error:
                return f"it generated no token within {self._hang_s:g} s: {error}"
        return "its counters began anew: somebody restarted it"
