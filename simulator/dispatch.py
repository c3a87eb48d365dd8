"""The simulated workers as a dispatcher sees them, for `ppd.core.plan`."""

import random
from collections.abc import Iterable, Sequence
from math import inf

from ppd.core.decision import WorkerView
from ppd.core.learning.link import LinkCost, PairLinks
from ppd.core.load import Glance
from ppd.core.names import Role
from ppd.core.prefixes import Marks, PrefixIndex
from ppd.core.roster import CANDIDATES, Roster
from simulator.cluster import SimCluster
from simulator.meter import Meter

_MAX_KEYS = 1_000_000


class SimulatedFleet:
    """Every worker of a cluster: none ever fails, and any P and D can exchange KV.

    `candidates`: how many workers of a role one turn looks at.
    """

    def __init__(self, cluster: SimCluster, candidates: int = CANDIDATES, seed: int = 0) -> None:
        self._cluster = cluster
        self._candidates = candidates
        self.meters = {worker.name: Meter(worker) for worker in cluster.workers}
        self.links = PairLinks()
        self.prefixes = PrefixIndex(_MAX_KEYS)
        draw = random.Random(seed).random
        self._rosters: dict[Role, Roster[Meter]] = {role: Roster(draw) for role in Role}
        for worker in cluster.workers:
            self._rosters[worker.role].put(self.meters[worker.name])

    @property
    def now_s(self) -> float:
        return self._cluster.now_s

    def decodes(self, wanted: Sequence[str]) -> list[Glance]:
        return self._some(Role.DECODE, wanted)

    def replicas(self, wanted: Sequence[str]) -> list[Glance]:
        return self._some(Role.REPLICA, wanted)

    def prefills(self, decode: str, wanted: Sequence[str]) -> list[Glance]:
        return self._some(Role.PREFILL, wanted)

    def lent(self, wanted: Sequence[str]) -> list[Glance]:
        return self._some(Role.PREFILL, wanted)

    def view(self, worker: str) -> WorkerView:
        return self.meters[worker].view(self.now_s, inf)

    def can_pull_back(self, prefill: str) -> bool:
        return True

    def kv_bytes_per_token(self, decode: str) -> int:
        return self.meters[decode].worker.kv_bytes_per_token

    def link(self, prefill: str, decode: str) -> LinkCost:
        return self.links.cost(prefill, decode)

    def computed(self, worker: str, marks: Marks, prompt_tokens: int) -> None:
        """A worker has, or will have, the KV of a whole prompt."""
        config = self.meters[worker].worker.engine.config
        self.prefixes.add(worker, marks, prompt_tokens, config.kv_capacity_tokens)

    def found(self, worker: str, marks: Marks, cached_tokens: int) -> None:
        """A worker reported how much of a prompt it had."""
        if cached_tokens >= 0:
            block = self.meters[worker].worker.engine.config.block_size_tokens
            self.prefixes.correct(worker, marks, cached_tokens, block)

    def _some(self, role: Role, wanted: Sequence[str]) -> list[Glance]:
        found: Iterable[Meter] = self._rosters[role].with_(wanted, self._candidates)
        return [meter.glance(self.now_s, inf) for meter in found]
