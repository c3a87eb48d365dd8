"""The router of the paper's sweep: the path is fixed by the worker that a conversation lives on."""

import random
from math import inf

from ppd.core.names import Path, Role
from simulator.cluster import Cluster, Job, Route, Worker


class FixedRouter:
    """`local` names the decode workers that append-prefill; all others get later turns by way of P.

    As the measured TPOTs show (one mode on decode workers, several on replicas), conversations go round the
    decode workers but fall on replicas at random; where there are both, each of them gets the same share.
    `stray`: the share of turns meant to be D-local that go over P nevertheless.
    """

    tick_s = inf

    def __init__(self, local: frozenset[str], stray: float = 0.0, seed: int = 0) -> None:
        self._local = local
        self._stray = stray
        self._rng = random.Random(seed)
        self._home: dict[int, Worker] = {}
        self._next = 0
        self._next_prefill = 0

    def route(self, job: Job, cluster: Cluster) -> Route:
        home = self._home.get(job.conversation.id)
        if home is None:
            home = self._home[job.conversation.id] = self._new_home(cluster)
        if home.role is Role.REPLICA:
            return Route(Path.REPLICA, home)
        if job.index > 0 and home.name in self._local and self._rng.random() >= self._stray:
            return Route(Path.D_LOCAL, home)
        prefills = cluster.of(Role.PREFILL)
        self._next_prefill += 1
        return Route(Path.P_D, home, prefills[self._next_prefill % len(prefills)])

    def _new_home(self, cluster: Cluster) -> Worker:
        replicas, decodes = cluster.of(Role.REPLICA), cluster.of(Role.DECODE)
        if replicas and self._rng.randrange(len(replicas) + len(decodes)) < len(replicas):
            return self._rng.choice(replicas)
        self._next += 1
        return decodes[self._next % len(decodes)]

    def prefilled(self, job: Job) -> None:
        pass

    def moved(self, job: Job) -> None:
        pass

    def finished(self, job: Job, cluster: Cluster) -> None:
        pass

    def tick(self, cluster: Cluster) -> None:
        pass
