"""A router without a policy: the path is fixed by the worker that a conversation lives on."""

from math import inf

from ppd.core.names import Role, Route
from simulator.cluster import Assignment, Job, SimCluster, SimWorker


class FixedPaths:
    """What routers share that learn nothing from what becomes of a turn: `route` alone is their own."""

    tick_s = inf

    def prefilled(self, job: Job) -> None:
        pass

    def moved(self, job: Job) -> None:
        pass

    def finished(self, job: Job, cluster: SimCluster) -> None:
        pass

    def tick(self, cluster: SimCluster) -> None:
        pass


class FixedRouter(FixedPaths):
    """`local` names the decode workers that append-prefill; all others get later turns by way of P.

    Conversations go round the workers that they can live on, and their hand-offs round the prefill workers.
    """

    def __init__(self, local: frozenset[str]) -> None:
        self._local = local
        self._home: dict[int, SimWorker] = {}
        self._next = 0
        self._next_prefill = 0

    def route(self, job: Job, cluster: SimCluster) -> Assignment:
        home = self._home.get(job.conversation.id)
        if home is None:
            home = self._home[job.conversation.id] = self._new_home(cluster)
        if home.role is Role.REPLICA:
            return Assignment(Route.REPLICA, home)
        if job.index > 0 and home.name in self._local:
            return Assignment(Route.D_LOCAL, home)
        prefills = cluster.of(Role.PREFILL)
        self._next_prefill += 1
        return Assignment(Route.P_D, home, prefills[self._next_prefill % len(prefills)])

    def _new_home(self, cluster: SimCluster) -> SimWorker:
        homes = cluster.of(Role.DECODE) + cluster.of(Role.REPLICA)
        self._next += 1
        return homes[self._next % len(homes)]
