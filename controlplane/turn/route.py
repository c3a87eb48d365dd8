"""Decide and place: features -> a path, why, and the workers that take it."""

import msgspec
from msgspec.structs import replace

from controlplane.engines.cluster import Cluster, compatible
from controlplane.engines.links import Links
from controlplane.engines.worker import Worker
from controlplane.errors import NO_WORKER, ApiError
from controlplane.shared.tables import Tables
from controlplane.turn.features import Conversation
from controlplane.turn.parse import Request
from ppd.core import place
from ppd.core.decision import Decision, Policy, View, WorkerView
from ppd.core.learning.link import UNKNOWN, LinkCost
from ppd.core.names import Reason, Role, Route
from ppd.core.sessions import Pullback
from ppd.core.table import Table


class Plan(msgspec.Struct, frozen=True):
    """What a turn will do."""

    decision: Decision
    path: Route
    reason: Reason
    prefill: Worker | None  # None where the turn runs whole on one engine
    decode: Worker
    cached: bool  # the session's own D was kept, so its cache counts
    pullback: Pullback | None = None  # by which P pulls the conversation's KV from D first
    seen: WorkerView | None = None  # `decode` as it was when this was decided
    prefill_queued_tokens: int = 0  # of `prefill`, then
    p_cached_tokens: int = 0  # of the prompt, what the P that was looked at is expected to hold


class Router:
    """Chooses for each turn, in memory alone."""

    def __init__(
        self, cluster: Cluster, policy: Policy, tables: Tables, links: Links, stale_s: float
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.tables = tables
        self.links = links
        self._stale_s = stale_s

    def plan(
        self,
        request: Request,
        conversation: Conversation,
        slo: str,
        now_s: float,
        failed: frozenset[str] = frozenset(),
        force: Route | None = None,
    ) -> Plan:
        """`failed`: workers that this turn tried already. Raises ApiError (503) where nobody can serve it."""
        choice = _Choice(self, request, conversation, now_s, failed)
        decode, replica = choice.decode, choice.replica
        decision = self._decide(choice, slo, force)
        path, reason = decision.path, decision.reason
        if replica is not None and (decode is None or path is Route.REPLICA):
            if path is not Route.REPLICA or replica.record.role is Role.PREFILL:
                reason = Reason.NO_DECODE
            cached = replica is choice.home
            held = choice.turn.p_cached
            seen = choice.seen(replica)
            return Plan(
                decision, Route.REPLICA, reason, None, replica, cached, seen=seen, p_cached_tokens=held
            )
        if decode is None:
            raise ApiError(503, NO_WORKER, retry_after_s=1)
        return self._on_decode(decision, choice, decode)

    @staticmethod
    def _on_decode(decision: Decision, choice: "_Choice", decode: Worker) -> Plan:
        path, reason, prefill = decision.path, decision.reason, choice.prefill
        if path in (Route.REPLICA, Route.D_LOCAL):
            path, prefill = Route.D_LOCAL, None
        elif prefill is None:
            path, reason = Route.D_LOCAL, Reason.NO_PREFILL
        pullback = choice.pullback if path is Route.P_D_PULLBACK else None
        if path is Route.P_D_PULLBACK and pullback is None:
            path = Route.P_D
        cached, seen = decode is choice.home, choice.seen(decode)
        queued = choice.seen(prefill).queued_prefill_tokens if prefill is not None else 0
        held = choice.turn.p_cached
        return Plan(decision, path, reason, prefill, decode, cached, pullback, seen, queued, held)

    def _decide(self, choice: "_Choice", slo: str, force: Route | None) -> Decision:
        if force is not None:
            return Decision(force, Reason.FORCED)
        if choice.request.one_engine:
            whole = Route.REPLICA if choice.replica and choice.home is not choice.decode else Route.D_LOCAL
            return Decision(whole, Reason.ONE_ENGINE)
        if choice.home is not None and choice.home is choice.replica:
            return Decision(Route.REPLICA, Reason.BOUND)
        if choice.home is None and choice.prefers_replica():
            return Decision(Route.REPLICA, Reason.FIRST_TURN if choice.turn.turn <= 1 else Reason.NOT_CACHED)
        model = choice.request.model
        table = self.tables.table(model, self.cluster.placement(model))
        view = choice.view(self._link(choice, table))
        decision = self.policy.decide(choice.turn, view, table, self.tables.weights(table, slo))
        if decision.reason is Reason.NOT_CACHED and choice.escape is not None:
            return replace(decision, reason=choice.escape)
        return decision

    def _link(self, choice: "_Choice", table: Table | None) -> LinkCost:
        """Of this P and D, by what they moved of late; else what the planner learned of such pairs."""
        p, d = choice.prefill, choice.decode
        found = self.links.cost(p.id, d.id) if p is not None and d is not None else UNKNOWN
        return table.link if found is UNKNOWN and table is not None else found

    def another_prefill(
        self, plan: Plan, request: Request, now_s: float, failed: frozenset[str]
    ) -> Worker | None:
        """A P that was not tried yet and that this plan's D can pull from."""
        found = self.cluster.ready(request.model, Role.PREFILL, now_s, failed)
        views = {each.id: each for each in found if self.cluster.can_pull(plan.decode, each, now_s)}
        best = place.pick_prefill((each.view(now_s, self._stale_s) for each in views.values()), 0, {})
        return views[best.worker_id] if best else None

    def another_decode(self, model: str, but: Worker, now_s: float) -> Worker | None:
        """A D that can pull from the same P as `but`."""
        found = self.cluster.ready(model, Role.DECODE, now_s, frozenset({but.id}))
        return next((each for each in found if compatible(each, but)), None)

    def least_loaded(self, model: str, now_s: float, failed: frozenset[str]) -> Worker | None:
        """The engine that would decode a turn of its own soonest."""
        decodes, replicas = self.cluster.decoders(model, now_s, failed)
        found = {each.id: each for each in decodes + replicas}
        best = place.pick_decode([each.view(now_s, self._stale_s) for each in found.values()])
        return found[best.worker_id] if best else None

    def can_serve(self, model: str, failed: frozenset[str], now_s: float) -> bool:
        """Whether an engine is left that did not fail this turn."""
        return any(self.cluster.ready(model, role, now_s, failed) for role in Role)


class _Choice:
    """The workers that placement would use for one turn."""

    def __init__(
        self,
        router: Router,
        request: Request,
        conversation: Conversation,
        now_s: float,
        failed: frozenset[str],
    ) -> None:
        cluster = router.cluster
        self.request = request
        self.turn = conversation.turn
        self._n_out_mean = conversation.n_out_mean
        self.escape: Reason | None = None
        decodes, replicas = cluster.decoders(request.model, now_s, failed)
        self.engines = decodes + replicas
        self._views: dict[str, WorkerView] = {
            each.id: each.view(now_s, router._stale_s) for each in self.engines
        }
        self.home = self._home(conversation)
        self.decode = self.home if self.home is not None and self.home in decodes else self._least(decodes)
        self.replica = self.home if self.home is not None and self.home in replicas else self._least(replicas)
        self.prefill = self._prefill(cluster, router._stale_s, conversation, now_s, failed)
        if self.prefill is not None and conversation.session is not None:
            self.turn = place.on_prefill(self.turn, self.prefill.id, conversation.session.prefill_worker)
        self.pullback = self._pullback(conversation, now_s)
        if conversation.match is not None and self.home is None:
            self.escape = self.escape or Reason.SESSION_MOVED
            self.turn = replace(self.turn, d_cached=0)

    def _home(self, conversation: Conversation) -> Worker | None:
        """The engine that the conversation lives on, if it can take this turn."""
        session = conversation.session
        if session is None or not session.decode_worker:
            return None
        home = next((each for each in self.engines if each.id == session.decode_worker), None)
        if home is not None and place.saturated(self._views[home.id], self._views.values()):
            self.escape = Reason.OVERLOAD_ESCAPE
            return None
        return home

    def _least(self, workers: list[Worker]) -> Worker | None:
        if len(workers) < 2:
            return workers[0] if workers else None
        best = place.pick_decode([self._views[each.id] for each in workers])
        return next(each for each in workers if each.id == best.worker_id) if best else None

    def _prefill(
        self,
        cluster: Cluster,
        stale_s: float,
        conversation: Conversation,
        now_s: float,
        failed: frozenset[str],
    ) -> Worker | None:
        decode = self.decode
        if decode is None:
            return None
        found = cluster.ready(self.request.model, Role.PREFILL, now_s, failed)
        fitting = {each.id: each for each in found if cluster.can_pull(decode, each, now_s)}
        views = [each.view(now_s, stale_s) for each in fitting.values()]
        for view in views:
            self._views[view.worker_id] = view
        if len(views) < 2:
            return fitting[views[0].worker_id] if views else None
        session = conversation.session
        cached = {session.prefill_worker: self.turn.p_cached} if session else {}
        best = place.pick_prefill(views, self.turn.prompt, cached)
        return fitting[best.worker_id] if best else None

    def _pullback(self, conversation: Conversation, now_s: float) -> Pullback | None:
        """D's parameters, where they are for exactly this history, on this incarnation, and not expired."""
        match = conversation.match
        held = match.session.pullback if match is not None and match.exact else None
        if match is None or held is None or self.prefill is None or not self.prefill.record.bidirectional:
            return None
        home = self.home
        if home is None or home is not self.decode or home.id != held.decode_worker:
            return None
        return held if held.after == match.mark.after and now_s < held.expires_s else None

    def prefers_replica(self) -> bool:
        """Of the engines that could become this conversation's home, a replica is the least loaded."""
        if self.replica is None or self.decode is None or self.prefill is None:
            return self.decode is None
        best = place.pick_decode([self._views[self.decode.id], self._views[self.replica.id]])
        return best is not None and best.worker_id == self.replica.id

    def seen(self, worker: Worker) -> WorkerView:
        return self._views[worker.id]

    def view(self, link: LinkCost) -> View:
        return View(
            prefill=self._views[self.prefill.id] if self.prefill else None,
            decode=self._views[self.decode.id] if self.decode else None,
            replica=self._views[self.replica.id] if self.replica else None,
            n_out_mean=self._n_out_mean,
            kv_bytes_per_token=self.decode.record.kv_bytes_per_token if self.decode else 0,
            link_bytes_per_s=link.bytes_per_s,
            handoff_ms=link.setup_ms,
            pullback=self.pullback is not None,
        )
