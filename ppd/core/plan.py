"""The whole plan of a turn: which route it takes, why, and the workers that serve it.

Pure, and the only implementation: the frontend and the simulator give it the same kind of input, and only
carry out what it returns.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ppd.core import place
from ppd.core.affinity import NOWHERE, Near
from ppd.core.decision import Decision, Policy, Turn, View, Weights, WorkerView
from ppd.core.learning.link import UNKNOWN, LinkCost
from ppd.core.load import Glance
from ppd.core.names import Reason, Route
from ppd.core.prefixes import UNKNOWN as UNKNOWN_PREFIXES
from ppd.core.prefixes import Held
from ppd.core.table import Table


class NoWorkerError(Exception):
    """No worker is left that could serve the turn."""


class Standing(msgspec.Struct, frozen=True):
    """A turn, and what is known of its conversation."""

    turn: Turn  # its cached tokens are those that `home` and `prefill` are expected to hold
    home: str = ""  # the worker that the conversation lives on
    prefill: str = ""  # the P that computed the conversation's last prompt
    near: Near = NOWHERE  # workers that may hold the prompt's beginning: preferred, but nothing is bound
    known: bool = False  # the request continues a history that was served before
    pullback_from: str = ""  # the D that holds exactly this history for a pull-back
    one_engine: bool = False  # the request cannot be handed off
    n_out_mean: float = 0.0  # recent mean of this model's output tokens; 0 = not known
    held: Held = UNKNOWN_PREFIXES  # what each worker should hold of the prompt, whoever put it there


class Fleet(Protocol):
    """The workers of the turn's model that can be used now.

    Each list holds a bounded number of them, in an order that rotates from turn to turn, so that equals share
    the load. The workers that are `wanted` are always among them if they can be used.
    """

    def decodes(self, wanted: Sequence[str]) -> Sequence[Glance]: ...

    def replicas(self, wanted: Sequence[str]) -> Sequence[Glance]: ...

    def prefills(self, decode: str, wanted: Sequence[str]) -> Sequence[Glance]:
        """Those whose KV `decode` can read."""

    def lent(self, wanted: Sequence[str]) -> Sequence[Glance]:
        """The P's, where nobody else can decode: they take turns whole."""

    def view(self, worker: str) -> WorkerView:
        """All that is known of one of the workers listed."""

    def can_pull_back(self, prefill: str) -> bool:
        """Whether P can read the KV of a D."""

    def kv_bytes_per_token(self, decode: str) -> int: ...

    def link(self, prefill: str, decode: str) -> LinkCost:
        """What this pair's own transfers cost; UNKNOWN where it has moved too little."""


class Plan(msgspec.Struct, frozen=True):
    """What a turn will do. The cached tokens of `turn` are those of the workers that it goes to."""

    decision: Decision
    route: Route
    reason: Reason
    turn: Turn
    worker: WorkerView  # the engine that decodes, as it was seen when this was decided
    prefill: WorkerView | None = None  # None where the turn runs whole on `worker`
    at_home: bool = False  # `worker` is the conversation's home, so its cache counts
    pullback: bool = False  # P pulls the conversation's KV from `worker` first


def plan(
    standing: Standing,
    fleet: Fleet,
    policy: Policy,
    table: Table | None,
    weights: Weights,
    force: Route | None = None,
) -> Plan:
    """Raises NoWorkerError."""
    return _Planner(standing, fleet).plan(policy, table, weights, force)


class _Planner:
    """The workers that placement would use for one turn, and the choice between them."""

    def __init__(self, standing: Standing, fleet: Fleet) -> None:
        self._standing = standing
        self._fleet = fleet
        self._turn = standing.turn
        self._escape: Reason | None = None
        self._views: dict[str, WorkerView] = {}
        self._holders = standing.held.holders()
        wanted = [standing.home, standing.near.worker, *self._holders]
        decodes, replicas = fleet.decodes(wanted), fleet.replicas(wanted)
        self._lent = not decodes and not replicas
        if self._lent:
            replicas = fleet.lent(wanted)
        self._home = self._find_home(decodes, replicas)
        self._decode = self._pick(decodes)
        self._replica = self._pick(replicas)
        self._prefill = self._pick_prefill()
        self._turn = self._cached()
        if standing.known and self._home is None:
            self._escape = self._escape or Reason.SESSION_MOVED
        self._pullback = self._can_pull_back()

    def plan(self, policy: Policy, table: Table | None, weights: Weights, force: Route | None) -> Plan:
        decision = self._decide(policy, table, weights, force)
        route, reason, replica = decision.path, decision.reason, self._replica
        if replica is not None and (self._decode is None or route is Route.REPLICA):
            if route is not Route.REPLICA or self._lent:
                reason = Reason.NO_DECODE
            at_home, view = replica is self._home, self._view(replica)
            return Plan(decision, Route.REPLICA, reason, self._turn, view, at_home=at_home)
        if self._decode is None:
            raise NoWorkerError
        prefill = self._prefill
        if route in (Route.REPLICA, Route.D_LOCAL):
            route, prefill = Route.D_LOCAL, None
        elif prefill is None:
            route, reason = Route.D_LOCAL, Reason.NO_PREFILL
        pullback = route is Route.P_D_PULLBACK and self._pullback
        if route is Route.P_D_PULLBACK and not pullback:
            route = Route.P_D
        at_home = self._decode is self._home
        on_p = self._view(prefill) if prefill is not None else None
        return Plan(decision, route, reason, self._turn, self._view(self._decode), on_p, at_home, pullback)

    def _decide(self, policy: Policy, table: Table | None, weights: Weights, force: Route | None) -> Decision:
        if force is not None:
            return Decision(force, Reason.FORCED)
        if self._standing.one_engine:
            on_replica = self._replica is not None and self._home is not self._decode
            return Decision(Route.REPLICA if on_replica else Route.D_LOCAL, Reason.ONE_ENGINE)
        if self._home is not None and self._home is self._replica:
            return Decision(Route.REPLICA, Reason.BOUND)
        if self._home is None and self._prefers_replica():
            return Decision(Route.REPLICA, Reason.FIRST_TURN if self._turn.turn <= 1 else Reason.NOT_CACHED)
        decision = policy.decide(self._turn, self._seen(table), table, weights)
        if decision.reason is Reason.NOT_CACHED and self._escape is not None:
            return replace(decision, reason=self._escape)
        return decision

    def _find_home(self, decodes: Sequence[Glance], replicas: Sequence[Glance]) -> Glance | None:
        """The worker that the conversation lives on, if it can take this turn."""
        worker_id = self._standing.home
        if not worker_id:
            return None
        for engines in (decodes, replicas):
            for each in engines:
                if each.worker_id == worker_id:
                    if place.saturated(each, [*decodes, *replicas]):
                        self._escape = Reason.OVERLOAD_ESCAPE
                        return None
                    return each
        return None

    def _pick(self, workers: Sequence[Glance]) -> Glance | None:
        home = self._home
        if home is not None and any(each is home for each in workers):
            return home
        known = self._on_decode if self._holders else None
        return place.pick_decode(workers, known, self._standing.near.worker)

    def _pick_prefill(self) -> Glance | None:
        if self._decode is None:
            return None
        near = self._standing.near.prefill
        wanted = [self._standing.prefill, near, *self._holders]
        found = self._fleet.prefills(self._decode.worker_id, wanted)
        return place.pick_prefill(found, self._turn.prompt, self._on_prefill, near)

    def _on_prefill(self, worker: str) -> int:
        """Of the prompt, the tokens that a P should hold."""
        own = self._standing.turn.p_cached if worker == self._standing.prefill else 0
        return max(own, self._standing.held.tokens(worker)) if self._holders else own

    def _on_decode(self, worker: str) -> int:
        """Of the prompt, the tokens that a D or a replica should hold."""
        if self._home is not None and worker == self._home.worker_id:
            return self._standing.turn.d_cached
        return self._standing.held.tokens(worker) if self._holders else 0

    def _cached(self) -> Turn:
        """The turn as the workers chosen for it meet it."""
        turn, worker = self._turn, self._home or self._decode or self._replica
        d_cached = self._on_decode(worker.worker_id) if worker is not None else 0
        p_cached = self._on_prefill(self._prefill.worker_id) if self._prefill is not None else turn.p_cached
        if d_cached == turn.d_cached and p_cached == turn.p_cached:
            return turn
        return replace(turn, d_cached=d_cached, p_cached=p_cached)

    def _view(self, worker: Glance) -> WorkerView:
        """Made once: what was decided on is what is recorded."""
        found = self._views.get(worker.worker_id)
        if found is None:
            found = self._views[worker.worker_id] = self._fleet.view(worker.worker_id)
        return found

    def _can_pull_back(self) -> bool:
        home, prefill = self._home, self._prefill
        return (
            home is not None
            and home is self._decode
            and home.worker_id == self._standing.pullback_from
            and prefill is not None
            and self._fleet.can_pull_back(prefill.worker_id)
        )

    def _prefers_replica(self) -> bool:
        """Of the workers that could become this conversation's home, a replica is the least loaded."""
        if self._replica is None or self._decode is None or self._prefill is None:
            return self._decode is None
        return place.pick_decode([self._decode, self._replica]) is self._replica

    def _seen(self, table: Table | None) -> View:
        link, prefill, decode, replica = UNKNOWN, self._prefill, self._decode, self._replica
        if prefill is not None and decode is not None:
            link = self._fleet.link(prefill.worker_id, decode.worker_id)
        if link is UNKNOWN and table is not None:
            link = table.link
        return View(
            prefill=self._view(prefill) if prefill is not None else None,
            decode=self._view(decode) if decode is not None else None,
            replica=self._view(replica) if replica is not None else None,
            n_out_mean=self._standing.n_out_mean,
            kv_bytes_per_token=self._fleet.kv_bytes_per_token(decode.worker_id) if decode else 0,
            link_bytes_per_s=link.bytes_per_s,
            handoff_ms=link.setup_ms,
            pullback=self._pullback,
        )
