"""All engines that this frontend knows, by model and role, and which of them are usable."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from controlplane.engines.evidence import Ask
from controlplane.engines.models import Models, ModelWorkers
from controlplane.engines.pairs import Pairs
from controlplane.engines.pool import Pool
from controlplane.engines.worker import Patience, Worker
from controlplane.errors import NO_WORKER, ApiError, no_such_model
from controlplane.telemetry import metrics
from ppd.core.names import Role
from ppd.core.pairing import why_not
from ppd.core.records import WorkerLoad, WorkerRecord
from ppd.core.roster import CANDIDATES, Roster

_ASKED_AFTER = 0.2  # share of the patience after which a silent engine is asked whether it lives
_ASKED_EVERY = 0.1
_ANSWERED_IN = 0.5
_UNLISTED_S = 30.0  # an agent that has not registered again within this time has left


class Cluster:
    """All workers, by model and role. `update` is the registry watch's callback."""

    def __init__(
        self,
        make_pool: Callable[[str], Pool],
        logger: logging.Logger,
        patience: Patience | None = None,
        ask: Ask | None = None,
    ) -> None:
        """`ask`: how a silent engine is asked whether it lives; None: it is not."""
        self._ask = ask
        self._make_pool = make_pool
        self._log = logger
        self._patience = patience or Patience()
        self.workers: dict[str, Worker] = {}
        self._leaving: dict[str, Worker] = {}  # gone from the registry, with answers still under way
        self._models = Models()
        self._unlike: set[tuple[str, object, object]] = set()  # model, signatures of a P and a D
        self.pairs = Pairs()
        self.models_seen: dict[str, float] = {}  # model -> when first seen, unix s; bounded

    def update(self, records: dict[str, WorkerRecord], now_s: float) -> list[WorkerRecord]:
        """The registry's new view; returns the records that are new. A worker is its incarnation: a new id
        means a new pool and no past.

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
        new = []
        for worker_id, record in records.items():
            known = self.workers.get(worker_id)
            if known is not None and known.record is record and not known.unlisted_s:
                continue
            new.append(record)
            self._take(record, known or self._back(worker_id), now_s)
        return new

    def _take(self, record: WorkerRecord, known: Worker | None, now_s: float) -> None:
        """Add a worker, or take over its changed record."""
        if known is None:
            known = self.workers[record.worker_id] = Worker(record, self._make_pool(record.url))
            self._log.info("worker %s (%s) is %s", record.name, record.worker_id, record.status)
        elif known.record.url != record.url:
            known.pool.close()
            known.record, known.pool = record, self._make_pool(record.url)
        else:
            known.record = record
        known.unlisted_s = 0.0
        for name in (record.model, *(name for name, parent in record.other_models.items() if not parent)):
            if name not in self.models_seen and len(self.models_seen) < 1024:
                self.models_seen[name] = record.started_unix_s
        self._models.put(known)
        self._log_unlike(known)

    def _part(self, worker: Worker) -> None:
        self._leaving[worker.id] = self.workers.pop(worker.id)
        worker.gone = True
        self._models.drop(worker.id)
        worker.pool.close()
        self._log.info("worker %s (%s) is gone", worker.name, worker.id)

    def _back(self, worker_id: str) -> Worker | None:
        """A worker that left and is registered again: etcd, or the connection to it, had failed."""
        worker = self._leaving.pop(worker_id, None)
        if worker is not None:
            worker.gone = False
            worker.pool.reopen()
            self.workers[worker_id] = worker
        return worker

    def _log_unlike(self, worker: Worker) -> None:
        """Log, once for each two kinds, a P and a D that cannot exchange KV and so never form a pair."""
        model = self._models.get(worker.record.model)
        if model is None or worker.record.role not in (Role.PREFILL, Role.DECODE):
            return
        prefills = worker.record.role is Role.PREFILL
        for signature, other in model.kinds(Role.DECODE if prefills else Role.PREFILL).items():
            pair = (worker.signature, signature) if prefills else (signature, worker.signature)
            kinds = (worker.record.model, *pair)
            if signature != worker.signature and kinds not in self._unlike and len(self._unlike) < 1024:
                self._unlike.add(kinds)
                records = (worker.record, other) if prefills else (other, worker.record)
                self._log.warning("%s", why_not(*records))

    def report(self, load: WorkerLoad, now_s: float) -> None:
        if worker := self.workers.get(load.worker_id) or self._leaving.get(load.worker_id):
            before = worker.last_report
            if before is not None and load.dropped_reports > before.dropped_reports:
                metrics.KV_REPORTS_DROPPED.inc(load.dropped_reports - before.dropped_reports)
            worker.report(load, now_s)

    def model(self, name: str) -> ModelWorkers | None:
        return self._models.get(name)

    def base(self, name: str) -> str:
        """The model that a name stands for: an adapter's is the one that it adapts."""
        found = self._models.get(name)
        return found.base if found is not None else name

    def placement(self, model: str) -> str:
        found = self._models.get(model)
        return found.placement if found is not None else "0R"

    def some(
        self,
        roster: Roster[Worker] | None,
        wanted: Sequence[str],
        now_s: float,
        but: frozenset[str],
        reader: str = "",
    ) -> list[Worker]:
        """A few workers of a roster for one turn, and those of `wanted` that are usable. Workers that just
        failed are left out unless all did. `reader`: the D that has to read their KV.
        """
        if not roster:
            return []
        found = roster.with_(wanted, CANDIDATES)
        usable = self._fit(found, now_s, but, reader)
        if len(found) < len(roster) and all(each.resting(now_s) for each in usable):
            usable = self._fit(roster.rotated(), now_s, but, reader)
        return usable

    def _fit(self, workers: list[Worker], now_s: float, but: frozenset[str], reader: str) -> list[Worker]:
        if reader:
            workers = [each for each in workers if self.pairs.usable(each.id, reader, now_s)]
        return _usable(workers, now_s, but)

    def ready(self, model: str, role: Role, now_s: float, but: frozenset[str] = frozenset()) -> list[Worker]:
        """All ready workers of a role, rotated so that equals share the load. Those that just failed are
        left out, unless there are no others."""
        found = self._models.get(model)
        return _usable(found.ready[role].rotated(), now_s, but) if found is not None else []

    def decoders(
        self, model: str, now_s: float, but: frozenset[str] = frozenset()
    ) -> tuple[list[Worker], list[Worker]]:
        """All D's, and the workers that serve whole turns: replicas or, where no other worker can decode,
        P's.
        """
        decodes = self.ready(model, Role.DECODE, now_s, but)
        replicas = self.ready(model, Role.REPLICA, now_s, but)
        if not decodes and not replicas:
            replicas = self.ready(model, Role.PREFILL, now_s, but)
        return decodes, replicas

    def can_pull(self, decode: Worker, prefill: Worker, now_s: float) -> bool:
        """Whether D can pull from P: their KV formats fit, and the pair is not set aside."""
        return compatible(prefill, decode) and self.pairs.usable(prefill.id, decode.id, now_s)

    def transfer_failed(self, prefill: Worker, decode: Worker, why: str, now_s: float) -> None:
        """A KV transfer failed between the two: set the pair aside for a while."""
        if rest_s := self.pairs.failed(prefill.id, decode.id, now_s):
            metrics.PAIRS_ASIDE.inc()
            self._log.warning(
                "KV does not pass from %s to %s (%s): set aside for %g s",
                prefill.name,
                decode.name,
                why,
                rest_s,
            )

    def names(self) -> Iterator[tuple[str, ModelWorkers]]:
        """Each name that a worker in any state serves, adapters included."""
        return iter(self._models)

    def by_model(self) -> Iterator[tuple[str, ModelWorkers]]:
        """Each model that has a worker in any state, under its first name."""
        return ((name, found) for name, found in self._models if name == found.base)

    def servable(self, model: str) -> bool:
        """Whether a turn of this model can be served by any path."""
        found = self._models.get(model)
        return found is not None and found.servable

    def check(self, model: str) -> None:
        """Raises ApiError: 404 for a model that never was and an adapter that is not loaded, 503 for a model
        that nobody serves now."""
        if self.servable(model):
            return
        if self.models_seen and model not in self.models_seen:
            raise no_such_model(model)
        raise ApiError(503, NO_WORKER, retry_after_s=1)

    def suspects(self, model: str) -> dict[str, str]:
        """The workers that seem to hang, by name, and why."""
        listed = self.workers.values()
        return {each.name: each.suspected for each in listed if each.suspected and each.record.model == model}

    def sweep(self, now_s: float, reports_flow: bool = True) -> bool:
        """Check deadlines, and suspect engines that seem to hang: their turns move elsewhere. Returns
        whether the set of usable workers changed. `reports_flow`: NATS is connected, so that one agent's
        silence means something.
        """
        changed = False
        for worker in list(self.workers.values()):
            worker.pool.sweep(now_s, worker.works(now_s, self._patience))
            self._ask_silent(worker, now_s)
            well = worker.lives(now_s, self._patience) and now_s - worker.unlisted_s < _UNLISTED_S
            if worker.unlisted_s and not well:
                changed = True
                self._part(worker)
                continue
            why = worker.trouble(now_s, self._patience, reports_flow)
            if why != worker.suspected:
                changed, worker.suspected = True, why
                self._models.put(worker)
                self._log.warning("worker %s %s", worker.name, f"is suspect: {why}" if why else "is back")
            if why:
                worker.pool.give_up(now_s, 0.0)
        for worker in list(self._leaving.values()):
            worker.pool.sweep(now_s, worker.works(now_s, self._patience))
            if not worker.lives(now_s, self._patience):
                worker.pool.give_up(now_s, self._patience.silent_s)
            if worker.pool.unused:
                del self._leaving[worker.id]
        return changed

    def put_off(self, by_s: float) -> None:
        """This process stalled for `by_s` seconds: extend all deadlines, since no engine is to blame."""
        for worker in [*self.workers.values(), *self._leaving.values()]:
            worker.pool.put_off(by_s)

    def _ask_silent(self, worker: Worker, now_s: float) -> None:
        """Ask an engine that has been silent for a while whether it lives."""
        evidence, silent_s = worker.evidence, _ASKED_AFTER * self._patience.silent_s
        if self._ask is None:
            return
        if evidence.unanswered and now_s - worker.pool.heard_s < silent_s:
            evidence.cleared()
        busy = evidence.asking is not None and not evidence.asking.done()
        early = now_s - evidence.asked_s < _ASKED_EVERY * self._patience.silent_s
        if busy or early or worker.well(now_s, self._patience):
            return
        if evidence.unanswered or worker.pool.waits_s(now_s) >= silent_s:
            evidence.asked_s = now_s
            asking = self._ask(worker.pool, evidence, _ANSWERED_IN * self._patience.silent_s)
            evidence.asking = asyncio.create_task(asking)

    def close(self) -> None:
        for worker in list(self.workers.values()):
            if worker.evidence.asking is not None:
                worker.evidence.asking.cancel()
            self._part(worker)


def compatible(prefill: Worker, decode: Worker) -> bool:
    """Whether D can pull from P."""
    return prefill.signature == decode.signature


def _usable(workers: list[Worker], now_s: float, but: frozenset[str]) -> list[Worker]:
    if but:
        workers = [worker for worker in workers if worker.id not in but]
    for worker in workers:
        if worker.resting(now_s):
            return [each for each in workers if not each.resting(now_s)] or workers
    return workers
