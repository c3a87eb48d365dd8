"""What moving KV costs between each P and each D, learned from the engines' reports."""

from ppd.core.learning.link import PairLinks
from ppd.core.records import KvMoved


class Links(PairLinks):
    """By the ids of the workers; in memory."""

    def report(self, moved: KvMoved, ranks: int) -> None:
        """One rank's transfer; all `ranks` of the engine that pulls move their shares at the same time."""
        if not moved.error and moved.source_worker_id:
            self.observe(moved.source_worker_id, moved.worker_id, moved.bytes * ranks, moved.transfer_s)
