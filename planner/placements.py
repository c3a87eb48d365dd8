"""Which placements run, and which of them should have a table of their own."""

from collections.abc import Collection, Iterable

import msgspec

from ppd.core import seeds
from ppd.core.names import WorkerStatus, table_key
from ppd.core.placement import Placement, placement_of, unlike
from ppd.core.records import TableSnapshot, WorkerRecord


def running_placements(workers: Iterable[WorkerRecord]) -> dict[str, Placement]:
    """Per model, the placement that its ready workers make up; those with nothing to decide are left out."""
    ready = [worker for worker in workers if worker.status is WorkerStatus.READY]
    found = {
        model: placement_of(worker.role for worker in ready if worker.model == model)
        for model in {worker.model for worker in ready}
    }
    return {model: placement for model, placement in found.items() if placement.prefill and placement.decode}


class WantedPlacements:
    """Says which tables to make, so that a worker that comes and goes does not make one each time.

    A table is never taken away: when a dead worker is back, the table of its placement is still there with
    all that it learned. A new placement gets a table only once it has lasted `settle_s`, but for a model's
    first one, which gets it at once.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._since: dict[str, tuple[Placement, float]] = {}

    def see(self, workers: Iterable[WorkerRecord], now_s: float) -> None:
        """The workers as they are at `now_s` on a monotonic clock."""
        running = running_placements(workers)
        self._since = {
            model: seen if (seen := self._since.get(model)) and seen[0] == placement else (placement, now_s)
            for model, placement in running.items()
        }

    def running(self) -> dict[str, Placement]:
        return {model: placement for model, (placement, _) in self._since.items()}

    def missing(
        self, known: Collection[str], known_models: Collection[str], now_s: float
    ) -> list[tuple[str, Placement]]:
        """Model and placement of each table that should be made now; `known` are the keys that exist."""
        return [
            (model, placement)
            for model, (placement, since_s) in self._since.items()
            if table_key(model, str(placement)) not in known
            and (model not in known_models or now_s - since_s >= self._settle_s)
        ]


def first_table(model: str, placement: Placement, known: Iterable[TableSnapshot]) -> TableSnapshot:
    """Where a placement starts: from what is known of this model on the placement most like it.

    Where only seeds are known, from the nearest seed.
    """
    own = [
        (apart, snapshot)
        for snapshot in known
        if snapshot.model == model and not snapshot.source.startswith("seed")
        if (apart := unlike(placement, snapshot.placement)) is not None
    ]
    if not own:
        return seeds.nearest(placement, model)
    _, like = min(own, key=lambda pair: pair[0])
    source = f"version {like.version} of {like.placement}, the placement most like {placement}"
    return msgspec.structs.replace(like, placement=str(placement), version=1, source=source, frozen=False)
