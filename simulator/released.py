"""Routing as the paper's released proxy does it, which shows in its measured sweep.

A conversation is known by a piece of its text, whose hash chooses among the replicas and decode workers, and
the same hash among the prefill workers. So the two choices hang together: of 2P_2D's four pairs only two are
used, and of 1R_2P_1D's prefill workers only one. Where that piece of text is not the same in the second turn,
the turn is a first one to the proxy and goes to workers chosen anew, to a replica without its history even.
That is so where the first prompt has one of two of the client's three forms and the second the third, two in
nine, and where an answer happens to have the marker in it that the proxy looks for.
"""

import random

from ppd.core.names import Role, Route
from simulator.cluster import Assignment, Job, SimCluster, SimWorker
from simulator.fixed import FixedPaths


class ReleasedRouter(FixedPaths):
    """`local` names the decode workers that append-prefill; all others get later turns by way of P.

    `lost`: the share of conversations that the proxy does not know again.
    """

    def __init__(self, local: frozenset[str], lost: float = 0.0, seed: int = 0) -> None:
        self._local = local
        self._lost = lost
        self._rng = random.Random(seed)
        self._homes: dict[int, tuple[SimWorker, SimWorker | None]] = {}

    def route(self, job: Job, cluster: SimCluster) -> Assignment:
        known = self._homes.get(job.conversation.id)
        if known is None or self._rng.random() < self._lost:
            home, prefill = self._homes[job.conversation.id] = self._place(cluster)
            return Assignment(Route.REPLICA if prefill is None else Route.P_D, home, prefill)
        home, prefill = known
        if prefill is None:
            return Assignment(Route.REPLICA, home)
        if home.name in self._local:
            return Assignment(Route.D_LOCAL, home)
        return Assignment(Route.P_D, home, prefill)

    def _place(self, cluster: SimCluster) -> tuple[SimWorker, SimWorker | None]:
        """Where a conversation goes that is new to the proxy."""
        hashed = self._rng.getrandbits(61)
        replicas, decodes = cluster.of(Role.REPLICA), cluster.of(Role.DECODE)
        if replicas:  # beside them, those that append-prefill come first
            decodes.sort(key=lambda worker: worker.name not in self._local)
        home = (replicas + decodes)[hashed % (len(replicas) + len(decodes))]
        prefills = cluster.of(Role.PREFILL)
        return home, None if home.role is Role.REPLICA else prefills[hashed % len(prefills)]
