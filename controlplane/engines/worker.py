"""One engine as this frontend sees it: its record, its last load report, and this frontend's own turns."""

from types import TracebackType
from typing import NamedTuple

from controlplane.engines.evidence import Evidence
from controlplane.engines.pool import Pool
from ppd.core.load import LoadTracker
from ppd.core.names import WorkerStatus
from ppd.core.records import WorkerRecord

_FIRST_REST_S = 0.5
_MAX_REST_S = 10.0
_FULL = 0.9  # share of KV memory in use from which on requests may wait for room


class Patience(NamedTuple):
    """How long an engine may show no sign of life before it is suspected."""

    silent_s: float = 10.0  # and answers nothing
    stuck_s: float = 30.0  # and answers, but makes no step
    stale_s: float = 2.0  # older reports are ignored


class Worker(LoadTracker):
    """One incarnation of an engine."""

    def __init__(self, record: WorkerRecord, pool: Pool) -> None:
        super().__init__(record.worker_id)
        self.record = record
        self.max_batch_tokens = record.max_batch_tokens
        self.signature = record.kv_signature()
        self.pool = pool
        self.gone = False
        self.unlisted_s = (
            0.0  # since when the registry lacks it although its agent reports; 0: it is registered
        )
        self.suspected = ""  # why it is suspected; a suspected worker gets no turns
        self.evidence = Evidence()
        self.reports_kv = False  # it has reported a transfer from a P before
        self._failures = 0
        self._rests_until_s = 0.0

    @property
    def name(self) -> str:
        return self.record.name or self.record.worker_id

    @property
    def told(self) -> bytes:
        """The name, as clients see it."""
        return self.name.encode()

    @property
    def ready(self) -> bool:
        return not self.gone and not self.suspected and self.record.status is WorkerStatus.READY

    def trouble(self, now_s: float, patience: Patience, reports_flow: bool) -> str:
        """Why the engine seems to hang; empty: it does not. The agent's reports count and, where they are
        missing, the answers that the engine owes; an engine that sends bytes is never suspected.
        """
        load = self._load if now_s - self._load_s <= patience.stale_s else None
        if self.evidence.unanswered:
            return "it does not answer when asked"
        if load is None and self.evidence.stuck_s(now_s) >= patience.stuck_s:
            why, within_s = "its engine makes no step", patience.stuck_s
        elif load is not None and load.silent_s >= patience.silent_s:
            why, within_s = "its engine answers nothing", patience.silent_s
        elif load is not None and load.stuck_s >= patience.stuck_s:
            why, within_s = "its engine makes no step", patience.stuck_s
        elif load is None and reports_flow and self.pool.waits_s(now_s) >= patience.silent_s:
            why, within_s = "neither its agent nor its engine is heard of", patience.silent_s
        else:
            return ""
        return why if now_s - self.pool.heard_s >= within_s else ""

    def lives(self, now_s: float, patience: Patience) -> bool:
        """Whether the agent reports and is not waiting for the engine."""
        load = self._load
        return load is not None and load.silent_s == 0 and now_s - self._load_s <= patience.stale_s

    def well(self, now_s: float, patience: Patience) -> bool:
        """Whether the agent reports that the engine answers and makes steps."""
        return self.lives(now_s, patience) and self._load is not None and self._load.stuck_s == 0

    def works(self, now_s: float, patience: Patience) -> bool:
        """Whether the engine is known to make steps, from its agent or because this frontend asked. A late
        answer is then no sign of a failure.
        """
        load = self._load
        if load is not None and now_s - self._load_s <= patience.stale_s:
            return load.silent_s == 0 and load.stuck_s < patience.stuck_s
        return self.evidence.works(now_s, patience.stuck_s)

    def has_room(self, now_s: float, stale_s: float) -> bool:
        """Whether the agent reports free KV memory; False: full, or not known."""
        load = self._load
        return load is not None and now_s - self._load_s <= stale_s and load.kv_use < _FULL

    # --- failures seen by this frontend, before etcd knows ---

    def failed(self, now_s: float) -> None:
        """Stop using the engine for a while, longer after each failure in a row. Failures during the pause
        count as part of the first one.
        """
        if self.resting(now_s):
            return
        self._rests_until_s = now_s + min(_FIRST_REST_S * 2**self._failures, _MAX_REST_S)
        self._failures = min(self._failures + 1, 16)

    def served(self) -> None:
        self._failures, self._rests_until_s = 0, 0.0

    def resting(self, now_s: float) -> bool:
        return now_s < self._rests_until_s


class Reservation:
    """A turn's place on a worker: booked with the decision, given back when the turn ends."""

    def __init__(
        self, worker: Worker, prefill_tokens: int, source: Worker | None = None, kv_tokens: int = 0
    ) -> None:
        """`source`: the P whose KV of `kv_tokens` tokens this D will read."""
        self.worker = worker
        self._prefill_tokens = prefill_tokens
        self._source = source
        self._kv_tokens = kv_tokens

    def __enter__(self) -> "Reservation":
        self.worker.running += 1
        self.worker.prefill_tokens += self._prefill_tokens
        if self._source is not None:
            self._source.unsent_kv_tokens += self._kv_tokens
        return self

    def prefilled(self) -> None:
        """The prompt is computed, or its KV has arrived."""
        self.worker.prefill_tokens -= self._prefill_tokens
        if self._source is not None:
            self._source.unsent_kv_tokens -= self._kv_tokens
        self._prefill_tokens = self._kv_tokens = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.prefilled()
        self.worker.running -= 1
