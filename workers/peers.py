"""Says, once for each, which other workers this one cannot exchange KV with."""

import logging

from ppd.core.names import Role
from ppd.core.pairing import why_not
from ppd.core.records import WorkerRecord

_COUNTERPART = {Role.PREFILL: Role.DECODE, Role.DECODE: Role.PREFILL}


class PeerCheck:
    """Looks at the workers of the namespace, as a WorkerWatch brings them."""

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self._name = name
        self._log = logger
        self._said: set[str] = set()

    def look(self, workers: dict[str, WorkerRecord]) -> None:
        """Log an error that names both sides for each unlike pair that was not there before."""
        mine = [worker for worker in workers.values() if worker.name == self._name]
        found = {
            reason
            for me in mine
            for other in workers.values()
            if other.model == me.model and other.role is _COUNTERPART.get(me.role)
            if (reason := why_not(me, other))
        }
        for reason in sorted(found - self._said):
            self._log.error("%s: no turn will be sent from one to the other", reason)
        self._said = found
