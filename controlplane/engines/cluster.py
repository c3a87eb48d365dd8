"""All engines of this frontend, by model and role: etcd's records, and which of them can be used."""

import logging
from collections import deque
from collections.abc import Callable, Iterator

from controlplane.engines.pairs import Pairs
from controlplane.engines.upstream import Pool
from controlplane.engines.worker import Patience, Worker
from controlplane.errors import NO_WORKER, ApiError, no_such_model
from controlplane.telemetry import metrics
from ppd.core.names import Role
from ppd.core.pairing import why_not
from ppd.core.placement import placement_of
from ppd.core.records import WorkerLoad, WorkerRecord

_UNLISTED_S = 30.0  # an agent that has not registered again within this time has left


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
