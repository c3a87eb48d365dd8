"""The engines of each model, by role. A change of one engine costs the same however many there are."""

import random
from collections.abc import Iterator

from controlplane.engines.worker import Worker
from ppd.core.names import Role
from ppd.core.placement import Placement
from ppd.core.records import WorkerRecord
from ppd.core.roster import Roster

Signature = tuple[object, ...]
_Place = tuple[tuple[str, ...], Role, Signature, bool]  # names, role, signature, whether it is ready


class ModelWorkers:
    """The engines that serve one name: a model, a second name of it, or an adapter."""

    def __init__(self, base: str) -> None:
        self.base = base  # the model itself, whose table counts
        self.ready: dict[Role, Roster[Worker]] = {role: Roster(random.random) for role in Role}
        self.listed: dict[str, Worker] = {}  # in any state
        self.placement = "0R"
        self._kinds: dict[Role, dict[Signature, WorkerRecord]] = {role: {} for role in Role}
        self._prefills: dict[Signature, Roster[Worker]] = {}  # ready ones, by what they need of a D

    @property
    def servable(self) -> bool:
        """Whether a turn can be served by any path."""
        return any(self.ready.values())

    def prefills_for(self, decode: Worker) -> Roster[Worker] | None:
        """The ready P's from which `decode` can read KV."""
        return self._prefills.get(decode.signature)

    def kinds(self, role: Role) -> dict[Signature, WorkerRecord]:
        """Each signature that was seen in a role, and the first engine that had it."""
        return self._kinds[role]

    def put(self, worker: Worker) -> None:
        self._kinds[worker.record.role].setdefault(worker.signature, worker.record)
        self.listed[worker.id] = worker
        if worker.ready:
            self.ready[worker.record.role].put(worker)
            if worker.record.role is Role.PREFILL:
                self._prefills.setdefault(worker.signature, Roster(random.random)).put(worker)
        self._name()

    def drop(self, worker_id: str) -> None:
        del self.listed[worker_id]
        for roster in self.ready.values():
            roster.drop(worker_id)
        for signature, roster in list(self._prefills.items()):
            roster.drop(worker_id)
            if not roster:
                del self._prefills[signature]
        self._name()

    def _name(self) -> None:
        counts = {role: len(roster) for role, roster in self.ready.items()}
        self.placement = str(Placement(counts[Role.PREFILL], counts[Role.DECODE], counts[Role.REPLICA]))


class Models:
    """All names under which a model is served by an engine in any state."""

    def __init__(self) -> None:
        self._models: dict[str, ModelWorkers] = {}
        self._places: dict[str, _Place] = {}  # worker id -> where it is listed

    def get(self, model: str) -> ModelWorkers | None:
        return self._models.get(model)

    def __iter__(self) -> Iterator[tuple[str, ModelWorkers]]:
        return iter(self._models.items())

    def put(self, worker: Worker) -> None:
        """Add an engine, or move one that changed to where it belongs now."""
        record = worker.record
        names = (record.model, *(name for name in record.other_models if name != record.model))
        place = (names, record.role, worker.signature, worker.ready)
        if self._places.get(worker.id) == place:
            return
        self.drop(worker.id)
        self._places[worker.id] = place
        for name in names:
            self._models.setdefault(name, ModelWorkers(record.model)).put(worker)

    def drop(self, worker_id: str) -> None:
        """Remove an engine; no error where it is not listed."""
        place = self._places.pop(worker_id, None)
        for name in place[0] if place is not None else ():
            self._models[name].drop(worker_id)
            if not self._models[name].listed:
                del self._models[name]
