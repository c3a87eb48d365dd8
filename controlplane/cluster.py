"""The engines as this frontend sees them: etcd's records, their load reports, and what was sent since."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

from controlplane import metrics
from controlplane.errors import NO_WORKER, ApiError, no_such_model
from controlplane.pairs import Pairs
from controlplane.upstream import Pool
from ppd.core.decision import WorkerView
from ppd.core.names import Role, WorkerStatus
from ppd.core.pairing import why_not
from ppd.core.placement import placement_of
from ppd.core.records import WorkerLoad, WorkerRecord

_FIRST_REST_S = 0.5
_MAX_REST_S = 10.0
_UNLISTED_S = 30.0  # after so long even an agent that is well has left


class Patience(NamedTuple):
    """For how long an engine may give no sign of life before it is suspected."""

    silent_s: float = 10.0  # and answers nothing
    stuck_s: float = 30.0  # and answers, but makes no step
    stale_s: float = 2.0  # older reports say nothing


class Worker:
    """One incarnation of an engine."""

    def __init__(self, record: WorkerRecord, pool: Pool) -> None:
        self.record = record
        self.id = record.worker_id
        self.signature = record.kv_signature()
        self.pool = pool
        self.gone = False
        self.unlisted_s = 0.0  # since when the registry lacks it, though its agent is well; 0 = it does not
        self.suspected = ""  # why; such a worker is used as little as one that is gone
        self.running = 0  # our turns on it
        self.prefill_tokens = 0  # of those, prompt tokens not computed yet
        self.unsent_kv_tokens = 0  # of our hand-offs from it, those whose KV is not on their D yet
        self._load: WorkerLoad | None = None
        self._load_s = 0.0
        self._running_at_report = 0
        self._prefill_at_report = 0
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

    def report(self, load: WorkerLoad, now_s: float) -> None:
        self._load, self._load_s = load, now_s
        self._running_at_report, self._prefill_at_report = self.running, self.prefill_tokens

    def report_age_s(self, now_s: float) -> float:
        return now_s - self._load_s + self._load.silent_s if self._load else 1e9

    def trouble(self, now_s: float, patience: Patience, reports_flow: bool) -> str:
        """Why it seems to hang; empty where nothing says so. What its agent says counts, and where that is
        silent too, what it owes us; but never against an engine from which bytes come."""
        load = self._load if now_s - self._load_s <= patience.stale_s else None
        if load is not None and load.silent_s >= patience.silent_s:
            why, within_s = "its engine answers nothing", patience.silent_s
        elif load is not None and load.stuck_s >= patience.stuck_s:
            why, within_s = "its engine makes no step", patience.stuck_s
        elif load is None and reports_flow and self.pool.waits_s(now_s) >= patience.silent_s:
            why, within_s = "neither its agent nor its engine is heard of", patience.silent_s
        else:
            return ""
        return why if now_s - self.pool.heard_s >= within_s else ""

    def lives(self, now_s: float, patience: Patience) -> bool:
        """Its agent reports, and has not been waiting for the engine."""
        load = self._load
        return load is not None and load.silent_s == 0 and now_s - self._load_s <= patience.stale_s

    def view(self, now_s: float, stale_s: float) -> WorkerView:
        """The last report plus what this frontend sent since; without a fresh report, only what it sent."""
        load, age_s = self._load, self.report_age_s(now_s)
        if load is None or age_s > stale_s:
            return WorkerView(
                self.id,
                running=self.running,
                queued_prefill_tokens=self.prefill_tokens,
                max_batch_tokens=self.record.max_batch_tokens,
                unsent_kv_tokens=self.unsent_kv_tokens,
                age_s=age_s,
            )
        return WorkerView(
            self.id,
            running=max(0, load.running + self.running - self._running_at_report),
            waiting=load.waiting,
            kv_use=load.kv_use,
            queued_prefill_tokens=max(
                0, load.queued_prefill_tokens + self.prefill_tokens - self._prefill_at_report
            ),
            itl_ms=load.itl_ms,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            prefill_speed_tokens_per_s=load.prefill_speed_tokens_per_s,
            max_batch_tokens=self.record.max_batch_tokens,
            unsent_kv_tokens=self.unsent_kv_tokens,
            age_s=age_s,
        )

    # --- failures seen by this frontend, before etcd knows ---

    def failed(self, now_s: float) -> None:
        """It rests for a while, longer each time in a row."""
        self._rests_until_s = now_s + min(_FIRST_REST_S * 2**self._failures, _MAX_REST_S)
        self._failures = min(self._failures + 1, 16)

    def served(self) -> None:
        self._failures, self._rests_until_s = 0, 0.0

    def resting(self, now_s: float) -> bool:
        return now_s < self._rests_until_s


class Reservation:
    """A turn's place on a worker, booked with the decision; leaves no trace behind when it ends."""

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
        """Its prompt is computed, or its KV has come."""
        self.worker.prefill_tokens -= self._prefill_tokens
        if self._source is not None:
            self._source.unsent_kv_tokens -= self._kv_tokens
        self._prefill_tokens = self._kv_tokens = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.prefilled()
        self.worker.running -= 1


class Cluster:
    """All workers, by model and role. `update` is the registry watch's callback."""

    def __init__(
        self, make_pool: Callable[[str], Pool], logger: logging.Logger, patience: Patience | None = None
    ) -> None:
        self._make_pool = make_pool
        self._log = logger
        self._patience = patience or Patience()
        self.workers: dict[str, Worker] = {}
        self._leaving: dict[str, Worker] = {}  # gone from the registry, with answers still under way
        self._models: dict[str, dict[Role, deque[Worker]]] = {}
        self._placements: dict[str, str] = {}
        self._unlike: set[tuple[str, str]] = set()
        self.pairs = Pairs()
        self.models_seen: dict[str, float] = {}  # model -> when first seen, unix s; bounded

    def update(self, records: dict[str, WorkerRecord], now_s: float) -> None:
        """The registry's new view. A worker is its incarnation: a new id means a new pool and no past.

        One that leaves says so before its record goes. Where a ready one's goes all the same, its lease ended
        while etcd stalled: it stays for as long as its agent reports, which will register it again.
        """
        for worker_id in self.workers.keys() - records.keys():
            worker = self.workers[worker_id]
            if not (worker.ready and worker.lives(now_s, self._patience)):
                self._part(worker)
            elif not worker.unlisted_s:
                worker.unlisted_s = now_s
                self._log.warning("worker %s (%s) lost its registration, and is well", worker.name, worker_id)
        for worker_id, record in records.items():
            known = self.workers.get(worker_id) or self._back(worker_id)
            if known is None:
                self.workers[worker_id] = Worker(record, self._make_pool(record.url))
                self._log.info("worker %s (%s) is %s", record.name, worker_id, record.status)
            elif known.record.url != record.url:
                known.pool.close()
                known.record, known.pool = record, self._make_pool(record.url)
            else:
                known.record = record
            self.workers[worker_id].unlisted_s = 0.0
            if record.model not in self.models_seen and len(self.models_seen) < 1024:
                self.models_seen[record.model] = record.started_unix_s
        self._say_unlike()
        self._arrange()

    def _part(self, worker: Worker) -> None:
        self._leaving[worker.id] = self.workers.pop(worker.id)
        worker.gone = True
        worker.pool.close()
        self._log.info("worker %s (%s) is gone", worker.name, worker.id)

    def _back(self, worker_id: str) -> Worker | None:
        """One that was gone and is registered again: etcd, or the way to it, was at fault."""
        worker = self._leaving.pop(worker_id, None)
        if worker is not None:
            worker.gone = False
            worker.pool.reopen()
            self.workers[worker_id] = worker
        return worker

    def _arrange(self) -> None:
        """Who can be used, by model and role."""
        self._models = {}
        for worker in self.workers.values():
            roles = self._models.setdefault(worker.record.model, {role: deque() for role in Role})
            if worker.ready:
                roles[worker.record.role].append(worker)
        self._placements = {
            model: str(placement_of(role for role, workers in roles.items() for _ in workers))
            for model, roles in self._models.items()
        }

    def _say_unlike(self) -> None:
        """A pair that cannot exchange KV is never used; it is said once."""
        listed = list(self.workers.values())
        for prefill in (each for each in listed if each.record.role is Role.PREFILL):
            for decode in (each for each in listed if each.record.role is Role.DECODE):
                same_model = prefill.record.model == decode.record.model
                if (
                    same_model
                    and not compatible(prefill, decode)
                    and (pair := (prefill.id, decode.id)) not in self._unlike
                ):
                    if len(self._unlike) < 1024:
                        self._unlike.add(pair)
                    self._log.warning("%s", why_not(prefill.record, decode.record))

    def report(self, load: WorkerLoad, now_s: float) -> None:
        if worker := self.workers.get(load.worker_id) or self._leaving.get(load.worker_id):
            worker.report(load, now_s)

    def placement(self, model: str) -> str:
        return self._placements.get(model, "0R")

    def ready(self, model: str, role: Role, now_s: float, but: frozenset[str] = frozenset()) -> list[Worker]:
        """The ready workers of a role, rotated so that equals share the load. Those that just failed are
        left out, unless there are no others."""
        found = self._models.get(model, {}).get(role)
        if not found:
            return []
        found.rotate(-1)
        usable = [worker for worker in found if worker.id not in but] if but else list(found)
        for worker in usable:
            if worker.resting(now_s):
                return [each for each in usable if not each.resting(now_s)] or usable
        return usable

    def decoders(
        self, model: str, now_s: float, but: frozenset[str] = frozenset()
    ) -> tuple[list[Worker], list[Worker]]:
        """The D's, and those that take a turn whole: replicas or, where nobody else can decode, the P's."""
        decodes = self.ready(model, Role.DECODE, now_s, but)
        replicas = self.ready(model, Role.REPLICA, now_s, but)
        if not decodes and not replicas:
            replicas = self.ready(model, Role.PREFILL, now_s, but)
        return decodes, replicas

    def can_pull(self, decode: Worker, prefill: Worker, now_s: float) -> bool:
        """Whether D can pull from P, by what both say and by how it went of late."""
        return compatible(prefill, decode) and self.pairs.usable(prefill.id, decode.id, now_s)

    def transfer_failed(self, prefill: Worker, decode: Worker, why: str, now_s: float) -> None:
        """KV did not pass between the two: other pairs are used for a while."""
        if rest_s := self.pairs.failed(prefill.id, decode.id, now_s):
            metrics.PAIRS_ASIDE.inc()
            self._log.warning(
                "KV does not pass from %s to %s (%s): set aside for %g s",
                prefill.name,
                decode.name,
                why,
                rest_s,
            )

    def by_model(self) -> Iterator[tuple[str, dict[Role, deque[Worker]]]]:
        """Each model that has a worker in any state, with its ready ones by role."""
        yield from self._models.items()

    def servable(self, model: str) -> bool:
        """Whether a turn of this model can be served by any path."""
        return any(self._models.get(model, {}).values())

    def check(self, model: str) -> None:
        """Raises ApiError: 404 for a model that never was, 503 for one that nobody serves now."""
        if self.servable(model):
            return
        if self.models_seen and model not in self.models_seen:
            raise no_such_model(model)
        raise ApiError(503, NO_WORKER, retry_after_s=1)

    def suspects(self, model: str) -> dict[str, str]:
        """Those that seem to hang by name, and why."""
        listed = self.workers.values()
        return {each.name: each.suspected for each in listed if each.suspected and each.record.model == model}

    def sweep(self, now_s: float, reports_flow: bool = True) -> bool:
        """Deadlines, and who seems to hang: what was asked of it moves elsewhere. Whether others than before
        can be used. `reports_flow`: NATS is there, so that the silence of one agent means something."""
        changed = False
        for worker in list(self.workers.values()):
            worker.pool.sweep(now_s)
            well = worker.lives(now_s, self._patience) and now_s - worker.unlisted_s < _UNLISTED_S
            if worker.unlisted_s and not well:
                changed = True
                self._part(worker)
                continue
            why = worker.trouble(now_s, self._patience, reports_flow)
            if why != worker.suspected:
                changed, worker.suspected = True, why
                self._log.warning("worker %s %s", worker.name, f"is suspect: {why}" if why else "is back")
            if why:
                worker.pool.give_up(now_s, 0.0)
        for worker in list(self._leaving.values()):
            worker.pool.sweep(now_s)
            if not worker.lives(now_s, self._patience):
                worker.pool.give_up(now_s, self._patience.silent_s)
            if worker.pool.unused:
                del self._leaving[worker.id]
        if changed:
            self._arrange()
        return changed

    def close(self) -> None:
        for worker in list(self.workers.values()):
            self._part(worker)
        self._arrange()


def compatible(prefill: Worker, decode: Worker) -> bool:
    """Whether D can pull from P."""
    return prefill.signature == decode.signature
