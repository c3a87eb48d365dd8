"""What a process of the frontend does ten times a second: deadlines, and gauges that nobody else sets."""

import asyncio

from controlplane.admission.gate import Gate
from controlplane.engines.fleet import Fleet
from controlplane.engines.pool import SWEEP_S
from controlplane.shared.siblings import Gauges, Siblings
from controlplane.telemetry import counts, metrics
from controlplane.turn.stored import StoredResponses
from ppd.core.sessions import SessionStore
from ppd.runtime.bus import Bus

_GAUGE_ROUNDS = 10  # of the sweep
_STALL_S = 0.5  # a sweep that is later has nothing to say about the engines


class Upkeep:
    """Sweeps the engines, the sessions and the gauges."""

    def __init__(
        self,
        fleet: Fleet,
        bus: Bus,
        sessions: SessionStore,
        stored: StoredResponses,
        gate: Gate,
        siblings: Siblings,
    ) -> None:
        self._fleet = fleet
        self._bus = bus
        self._sessions = sessions
        self._stored = stored
        self._gate = gate
        self._siblings = siblings

    async def run(self) -> None:
        """For a Supervisor."""
        clock = asyncio.get_running_loop().time
        rounds, lag_s = 0, 0.0
        while True:
            before_s = clock()
            await asyncio.sleep(SWEEP_S)
            now_s = clock()
            late_s = now_s - before_s - SWEEP_S
            lag_s = max(lag_s, late_s)
            if late_s > _STALL_S:
                self._fleet.cluster.put_off(late_s)
            else:
                self._fleet.sweep(now_s, self._bus.connected)
            self._siblings.say(Gauges(len(self._sessions), self._gate.running, self._gate.queued), now_s)
            counts.hand_over()  # other processes may be asked for this one's
            rounds += 1
            if rounds % _GAUGE_ROUNDS == 0:
                metrics.LOOP_LAG.set(lag_s)
                lag_s = 0.0
                self._sessions.expire(now_s)
                self._set_gauges()

    def _set_gauges(self) -> None:
        metrics.SESSIONS.set(len(self._sessions))
        metrics.STORED_RESPONSES.set(len(self._stored))
        metrics.RUNNING.set(self._gate.running)
        metrics.QUEUED.set(self._gate.queued)
