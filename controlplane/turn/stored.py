"""Which engine keeps a response, so that a client can refer to it by its id."""

from collections import OrderedDict

from controlplane.engines.worker import Worker

_MAX_RESPONSES = 65_536


class StoredResponses:
    """Response ids, the oldest dropped first."""

    def __init__(self) -> None:
        self._workers: OrderedDict[str, str] = OrderedDict()

    def note(self, response_id: str, worker: Worker) -> None:
        """`worker` gave an answer that has this id; empty = none."""
        if not response_id:
            return
        self._workers[response_id] = worker.id
        if len(self._workers) > _MAX_RESPONSES:
            self._workers.popitem(last=False)

    def worker(self, response_id: str) -> str:
        """The worker that keeps a response; empty where none is known to."""
        return self._workers.get(response_id, "")
