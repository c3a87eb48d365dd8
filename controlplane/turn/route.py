"""Decides and places a turn: from its features to a path, a reason, and the workers."""

from collections.abc import Callable, Sequence

import msgspec

from controlplane.dialects.base import Request
from controlplane.engines.cluster import Cluster, compatible
from controlplane.engines.links import Links
from controlplane.engines.worker import Worker
from controlplane.errors import NO_WORKER, ApiError
from controlplane.shared.tables import Tables
from controlplane.turn.features import Conversation
from ppd.core import place
from ppd.core.decision import Decision, Policy, Turn, WorkerView
from ppd.core.learning.link import LinkCost
from ppd.core.load import Glance
from ppd.core.names import Reason, Role, Route
from ppd.core.plan import NoWorkerError, Standing, plan
from ppd.core.sessions import Pullback

_ONE_MOVE_S = 0.5  # two load reports
_MAX_MOVES = 4096


class WorkerPlan(msgspec.Struct, frozen=True):
    """What a turn will do, and on which of this frontend's workers."""

    decision: Decision
    path: Route
    reason: Reason
    prefill: Worker | None  # None: the whole turn runs on one engine
    decode: Worker
    cached: bool  # the session's own D was kept, so its cache counts
    pullback: Pullback | None = None  # by which P pulls the conversation's KV from D first
    seen: WorkerView | None = None  # `decode` as it was when this was decided
    prefill_queued_tokens: int = 0  # of `prefill`, then
    p_cached_tokens: int = 0  # of the prompt, what the P that was looked at is expected to hold


class Router:
    """Plans each turn from memory alone, without I/O."""

    def __init__(
        self, cluster: Cluster, policy: Policy, tables: Tables, links: Links, stale_s: float
    ) -> None:
        self.cluster = cluster
        self.policy = policy
        self.tables = tables
        self.links = links
        self.stale_s = stale_s
        self._moved_s: dict[str, float] = {}  # when a turn last left its P's queue for this D

    def plan(
        self,
        request: Request,
        conversation: Conversation,
        slo: str,
        now_s: float,
        failed: frozenset[str] = frozenset(),
        force: Route | None = None,
    ) -> WorkerPlan:
        """Choose path and workers. `failed`: workers that this turn tried already. Raises ApiError (503)
        where no worker can serve it.
        """
        table = self.tables.table(request.base, self.cluster.placement(request.base))
        fleet = _Fleet(self, request.model, now_s, failed)
        weights = self.tables.weights(table, slo)
        try:
            found = plan(_standing(request, conversation, now_s), fleet, self.policy, table, weights, force)
        except NoWorkerError:
            raise ApiError(503, NO_WORKER, retry_after_s=1) from None
        workers, prefill = self.cluster.workers, found.prefill
        return WorkerPlan(
            found.decision,
            found.route,
            found.reason,
            workers[prefill.worker_id] if prefill is not None else None,
            workers[found.worker.worker_id],
            found.at_home,
            conversation.session.pullback if found.pullback and conversation.session else None,
            found.worker,
            prefill.queued_prefill_tokens if prefill is not None else 0,
            found.turn.p_cached,
        )

    def patience(
        self, plan: WorkerPlan, prefill: Worker, turn: Turn, sent_s: float
    ) -> Callable[[float], bool]:
        """The rule for a turn that waits for a P which makes steps: whether to wait longer, or to have D
        compute the prompt.

        It compares what is left of P's queue, as it was when the turn was sent, with D's queue now. Turns
        move to a D one at a time, so that each sees the load which the one before it brought.
        """
        decode, ahead = plan.decode, plan.prefill_queued_tokens + turn.prompt - plan.p_cached_tokens

        def wait_on(now_s: float) -> bool:
            p, d = prefill.view(now_s, self.stale_s), decode.view(now_s, self.stale_s)
            if p.prefill_speed_tokens_per_s <= 0 or d.prefill_speed_tokens_per_s <= 0:
                return True  # it is not known which would finish sooner
            if now_s - self._moved_s.get(decode.id, -_ONE_MOVE_S) < _ONE_MOVE_S:
                return True
            left_s = ahead / p.prefill_speed_tokens_per_s - (now_s - sent_s)
            lacks = turn.prompt - (turn.d_cached if plan.cached else 0)
            if left_s <= (d.queued_prefill_tokens + lacks) / d.prefill_speed_tokens_per_s:
                return True
            if len(self._moved_s) >= _MAX_MOVES:
                self._moved_s.clear()
            self._moved_s[decode.id] = now_s
            return False

        return wait_on

    def another_prefill(
        self, plan: WorkerPlan, request: Request, now_s: float, failed: frozenset[str]
    ) -> Worker | None:
        """An untried P from which this plan's D can pull."""
        found = self.cluster.ready(request.model, Role.PREFILL, now_s, failed)
        views = {each.id: each for each in found if self.cluster.can_pull(plan.decode, each, now_s)}
        best = place.pick_prefill(
            [each.glance(now_s, self.stale_s) for each in views.values()], 0, lambda _: 0
        )
        return views[best.worker_id] if best else None

    def another_decode(self, model: str, but: Worker, now_s: float) -> Worker | None:
        """Another D that can pull from the same P as `but`."""
        found = self.cluster.ready(model, Role.DECODE, now_s, frozenset({but.id}))
        return next((each for each in found if compatible(each, but)), None)

    def least_loaded(self, model: str, now_s: float, failed: frozenset[str]) -> Worker | None:
        """The engine that would decode a new turn soonest."""
        decodes, replicas = self.cluster.decoders(model, now_s, failed)
        found = {each.id: each for each in decodes + replicas}
        best = place.pick_decode([each.glance(now_s, self.stale_s) for each in found.values()])
        return found[best.worker_id] if best else None

    def can_serve(self, model: str, failed: frozenset[str], now_s: float) -> bool:
        """Whether any engine is left that has not failed this turn."""
        return any(self.cluster.ready(model, role, now_s, failed) for role in Role)


def whole_on(worker: Worker) -> WorkerPlan:
    """A plan for a request that only this worker can serve."""
    path = Route.D_LOCAL if worker.record.role is Role.DECODE else Route.REPLICA
    return WorkerPlan(Decision(path, Reason.ONE_ENGINE), path, Reason.ONE_ENGINE, None, worker, False)


class _Fleet:
    """The workers of one model that a turn has not tried yet, as `ppd.core.plan` asks for them."""

    def __init__(self, router: Router, model: str, now_s: float, failed: frozenset[str]) -> None:
        self._router = router
        self._cluster = router.cluster
        self._model = router.cluster.model(model)
        self._now_s = now_s
        self._failed = failed

    def decodes(self, wanted: Sequence[str]) -> list[Glance]:
        return self._some(Role.DECODE, wanted)

    def replicas(self, wanted: Sequence[str]) -> list[Glance]:
        return self._some(Role.REPLICA, wanted)

    def lent(self, wanted: Sequence[str]) -> list[Glance]:
        return self._some(Role.PREFILL, wanted)

    def prefills(self, decode: str, wanted: Sequence[str]) -> list[Glance]:
        if self._model is None:
            return []
        roster = self._model.prefills_for(self._cluster.workers[decode])
        return self._glances(self._cluster.some(roster, wanted, self._now_s, self._failed, decode))

    def view(self, worker: str) -> WorkerView:
        return self._cluster.workers[worker].view(self._now_s, self._router.stale_s)

    def can_pull_back(self, prefill: str) -> bool:
        return self._cluster.workers[prefill].record.bidirectional

    def kv_bytes_per_token(self, decode: str) -> int:
        return self._cluster.workers[decode].record.kv_bytes_per_token

    def link(self, prefill: str, decode: str) -> LinkCost:
        return self._router.links.cost(prefill, decode)

    def _some(self, role: Role, wanted: Sequence[str]) -> list[Glance]:
        if self._model is None or not (roster := self._model.ready[role]):
            return []
        return self._glances(self._cluster.some(roster, wanted, self._now_s, self._failed))

    def _glances(self, workers: list[Worker]) -> list[Glance]:
        now_s, stale_s = self._now_s, self._router.stale_s
        return [each.glance(now_s, stale_s) for each in workers]


def _standing(request: Request, conversation: Conversation, now_s: float) -> Standing:
    session, known = conversation.session, conversation.match is not None
    return Standing(
        conversation.turn,
        home=session.decode_worker if session is not None and known else "",
        prefill=session.prefill_worker if session is not None and known else "",
        near=conversation.near,
        known=known,
        pullback_from=_holder(conversation, now_s),
        one_engine=request.one_engine,
        n_out_mean=conversation.n_out_mean,
    )


def _holder(conversation: Conversation, now_s: float) -> str:
    """The D whose unexpired pull-back parameters are for exactly this history."""
    match = conversation.match
    held = match.session.pullback if match is not None and match.exact else None
    if match is None or held is None or held.after != match.mark.after or now_s >= held.expires_s:
        return ""
    return held.decode_worker
