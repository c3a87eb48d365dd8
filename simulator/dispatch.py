"""The simulated workers as a dispatcher sees them, for `ppd.core.plan`."""

from collections import deque
from math import inf

from ppd.core.decision import WorkerView
from ppd.core.learning.link import LinkCost, PairLinks
from ppd.core.names import Role
from simulator.cluster import Cluster
from simulator.meter import Meter


class SimulatedFleet:
    """Every worker of a cluster: none ever fails, and any P and D can exchange KV."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.meters = {worker.name: Meter(worker) for worker in cluster.workers}
        self.links = PairLinks()
        self._by_role = {role: deque(self.meters[w.name] for w in cluster.of(role)) for role in Role}

    @property
    def now_s(self) -> float:
        return self._cluster.now_s

    def ready(self, role: Role) -> list[WorkerView]:
        """Rotated at each call, as in the frontend: equals share the load."""
        found = self._by_role[role]
        found.rotate(-1)
        return [meter.view(self.now_s, inf) for meter in found]

    def can_pull(self, decode: str, prefill: str) -> bool:
        return True

    def can_pull_back(self, prefill: str) -> bool:
        return True

    def kv_bytes_per_token(self, decode: str) -> int:
        return self.meters[decode].worker.kv_bytes_per_token

    def link(self, prefill: str, decode: str) -> LinkCost:
        return self.links.cost(prefill, decode)
