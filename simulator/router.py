"""A policy at work: features, decision, placement and sessions by the same core code as the frontend's."""

import random
from dataclasses import dataclass

from ppd.core.decision import Decision, Policy, Turn, Weights
from ppd.core.identity import Candidate
from ppd.core.names import Outcome, Reason, Route
from ppd.core.plan import Plan, Standing, plan
from ppd.core.predict import OutputPredictor, RateWindow, session_mean
from ppd.core.prefixes import NOTHING, Held, Marks
from ppd.core.records import TurnRecord
from ppd.core.sessions import Mark, Session, SessionStore
from ppd.core.table import Table
from simulator.cluster import Assignment, Job, SimCluster
from simulator.dispatch import SimulatedFleet
from simulator.meter import Meter
from simulator.online import Online

_MODEL = "m"
_REPORT_S = 0.25
_SESSIONS = 100_000
_TTL_S = 3600.0
_TURNS = 1 << 12


@dataclass(slots=True)
class _Note:
    """What is remembered of a turn between its decision and its end."""

    turn: Turn
    decision: Decision
    reason: Reason
    session: Session
    marks: Marks
    unsent_kv_tokens: int
    decode_running: int
    decode_kv_use: float
    prefill_queued: int


class PolicyRouter:
    """`table` is fixed unless there is an online loop. `prefixes`: other chats' prefixes count too, which the
    frontend does not do yet."""

    tick_s = _REPORT_S

    def __init__(
        self,
        policy: Policy,
        table: Table | None,
        weights: Weights,
        placement: str,
        online: Online | None = None,
        pullback: bool = False,
        seed: int = 0,
        prefixes: bool = False,
    ) -> None:
        self.policy = policy
        self.weights = weights
        self.online = online
        self._table = table
        self._placement = placement
        self._pullback = pullback
        self._shares = prefixes
        self._rng = random.Random(seed)
        self._sessions = SessionStore(_SESSIONS, _TTL_S)
        self._outputs = OutputPredictor()
        self._arrivals = RateWindow()
        self.fleet: SimulatedFleet | None = None

    # --- the cluster's questions -------------------------------------------------------------------

    def route(self, job: Job, cluster: SimCluster) -> Assignment:
        now_s = cluster.now_s
        if self.fleet is None:
            self.fleet = SimulatedFleet(cluster)
        match = self._sessions.match(_places(job), now_s)
        session = match.session if match else Session(str(job.conversation.id))
        marks = job.conversation.marks(job.index) if self._shares else NOTHING
        standing = Standing(
            self._features(job, session, now_s),
            home=session.decode_worker,
            prefill=session.prefill_worker,
            known=match is not None,
            pullback_from=session.decode_worker if self._pullback else "",
            n_out_mean=self._outputs.mean(_MODEL),
            held=Held(self.fleet.prefixes, marks),
        )
        found = plan(standing, self.fleet, self.policy, self.table, self.weights)
        decode = self._meters[found.worker.worker_id].worker
        prefill = self._meters[found.prefill.worker_id].worker if found.prefill else None
        hold = self._pullback and found.route is not Route.REPLICA
        route = Assignment(found.route, decode, prefill, found.reason, pullback=found.pullback, hold=hold)
        self._book(job, route, found, session, marks)
        return route

    def prefilled(self, job: Job) -> None:
        route = job.route
        if route is not None and route.prefill is not None:
            meter = self._meters[route.prefill.name]
            meter.running -= 1
            meter.prefill_tokens -= job.note.turn.prompt - job.note.turn.p_cached

    def moved(self, job: Job) -> None:
        """Also of a turn whose prompt was all there: then nothing moves, and it is over at its end."""
        route, note = job.route, job.note
        if route is not None and route.prefill is not None:
            self._meters[route.prefill.name].unsent_kv_tokens -= note.unsent_kv_tokens
            note.unsent_kv_tokens = 0

    def finished(self, job: Job, cluster: SimCluster) -> None:
        route, note = job.route, job.note
        assert route is not None  # noqa: S101
        self.moved(job)
        self._observe_link(job)
        meter = self._meters[route.worker.name]
        meter.running -= 1
        if route.prefill is None:
            meter.prefill_tokens -= note.turn.prompt - note.turn.d_cached
        if self.fleet is not None:
            if route.prefill is not None:
                self.fleet.found(route.prefill.name, note.marks, job.cached_p)
                self.fleet.computed(route.prefill.name, note.marks, job.prompt)
            else:
                self.fleet.found(route.worker.name, note.marks, job.cached_d)
            self.fleet.computed(route.worker.name, note.marks, job.prompt)
        session: Session = note.session
        session.decode_worker = route.worker.name
        if route.prefill is not None:
            session.prefill_worker = route.prefill.name
            session.p_known_tokens = job.prompt
        session.local_streak = session.local_streak + 1 if route.path is Route.D_LOCAL else 0
        session.last_path = route.path
        session.n_out_mean_tokens = session_mean(session.n_out_mean_tokens, job.n_out)
        self._outputs.observe(_MODEL, job.n_out)
        after = _key(job.conversation.id, job.index)
        mark = Mark(-1 - after, after, job.index + 1, job.prompt, job.prompt + job.n_out)
        self._sessions.add_mark(session, mark, cluster.now_s)
        if self.online is not None:
            self.online.turn(self._record(job, cluster.now_s), cluster.now_s)

    def tick(self, cluster: SimCluster) -> None:
        for meter in self._meters.values():
            load = meter.measure(cluster.now_s)
            if self.online is not None and meter.decodes:
                self.online.load(load, cluster.now_s)
        if self.online is not None:
            self.online.tick(cluster.now_s)

    # --- its own -----------------------------------------------------------------------------------

    def _features(self, job: Job, session: Session, now_s: float) -> Turn:
        if job.index == 0:
            self._arrivals.add(now_s)
        known = session.marks[-1].total_tokens if session.marks else 0
        return Turn(
            turn=job.index + 1,
            n_in=job.prompt - known,
            n_out=self._outputs.predict(_MODEL, session.n_out_mean_tokens, None),
            n_ctx=known,
            qps=self._arrivals.rate(now_s),
            d_cached=known,
            p_cached=min(session.p_known_tokens, known),
            local_streak=session.local_streak,
            idle_s=now_s - session.last_s if session.marks else 0.0,
            draw=self._rng.random(),
        )

    def _observe_link(self, job: Job) -> None:
        route = job.route
        if self.fleet and route is not None and route.prefill is not None and job.kv_bytes:
            self.fleet.links.observe(route.prefill.name, route.worker.name, job.kv_bytes, job.kv_s)

    @property
    def _meters(self) -> dict[str, Meter]:
        return self.fleet.meters if self.fleet is not None else {}

    @property
    def table(self) -> Table | None:
        return self.online.table if self.online is not None else self._table

    def _book(self, job: Job, route: Assignment, found: Plan, session: Session, marks: Marks) -> None:
        turn, meter = found.turn, self._meters[route.worker.name]
        meter.running += 1
        unsent = 0
        if route.prefill is not None:
            other = self._meters[route.prefill.name]
            other.running += 1
            other.prefill_tokens += turn.prompt - turn.p_cached
            unsent = max(0, turn.prompt - turn.d_cached)
            other.unsent_kv_tokens += unsent
            if self.fleet is not None:
                self.fleet.computed(route.prefill.name, marks, job.prompt)
        else:
            meter.prefill_tokens += turn.prompt - turn.d_cached
        job.note = _Note(
            turn=turn,
            decision=found.decision,
            reason=found.reason,
            session=session,
            marks=marks,
            unsent_kv_tokens=unsent,
            decode_running=found.worker.running,
            decode_kv_use=found.worker.kv_use,
            prefill_queued=found.prefill.queued_prefill_tokens if found.prefill else 0,
        )

    def _record(self, job: Job, now_s: float) -> TurnRecord:
        route, note = job.route, job.note
        assert route is not None  # noqa: S101
        turn: Turn = note.turn
        return TurnRecord(
            request_id=f"{job.conversation.id}.{job.index}",
            ended_unix_s=now_s,
            model=_MODEL,
            placement=self._placement,
            path=route.path,
            reason=note.reason,
            outcome=Outcome.ERROR if job.failed else Outcome.OK,
            turn=turn.turn,
            cell=note.decision.cell,
            explored=note.decision.reason is Reason.EXPLORE,
            n_in_tokens=turn.n_in,
            n_ctx_tokens=turn.n_ctx,
            n_out_predicted_tokens=turn.n_out,
            n_prompt_tokens=job.prompt,
            n_out_tokens=job.n_out,
            expected_cached_tokens=turn.d_cached,
            cached_tokens_prefill=job.cached_p,
            cached_tokens_decode=job.cached_d,
            p_missing_tokens=turn.n_ctx - turn.p_cached,
            local_streak=turn.local_streak,
            idle_s=turn.idle_s,
            qps=turn.qps,
            ttft_ms=1e3 * job.ttft_s,
            path_ttft_ms=1e3 * job.ttft_s,
            tpot_ms=1e3 * job.tpot_s,
            e2e_ms=1e3 * job.e2e_s,
            kv_bytes=job.kv_bytes,
            kv_transfer_ms=1e3 * job.kv_s,
            prefill_worker=route.prefill.name if route.prefill else "",
            decode_worker=route.worker.name,
            decode_running=note.decode_running,
            decode_kv_use=note.decode_kv_use,
            prefill_queued_tokens=note.prefill_queued,
        )


def _key(conversation: int, turn: int) -> int:
    return conversation * _TURNS + turn + 1


def _places(job: Job) -> list[Candidate]:
    """Where this turn's history may meet a known one: after the last answer."""
    if job.index == 0:
        return []
    after = _key(job.conversation.id, job.index - 1)
    return [Candidate(after, -1 - after, job.index)]
