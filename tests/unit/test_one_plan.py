"""Frontend and simulator plan alike: a minute of simulated turns, replayed into the frontend's router."""

import logging
from typing import Any, NamedTuple

import pytest

from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.openai import Chat
from controlplane.engines.cluster import Cluster as Frontend
from controlplane.engines.links import Links
from controlplane.engines.worker import Reservation
from controlplane.shared.tables import Tables
from controlplane.turn.features import Conversation as Known
from controlplane.turn.route import Router
from ppd.core import policies, seeds
from ppd.core.decision import Weights
from ppd.core.names import Role, Route, WorkerStatus
from ppd.core.plan import Plan, Standing
from ppd.core.records import WorkerRecord
from ppd.core.sessions import Mark, Match, Pullback, Session
from ppd.core.table import Table
from simulator import workloads
from simulator.cluster import Assignment, Job, SimCluster
from simulator.fleet import fleet
from simulator.meter import Meter
from simulator.router import PolicyRouter

pytestmark = pytest.mark.unit

WEIGHTS = Weights(1.0, 2.0, ttft_limit_ms=500.0, tpot_limit_ms=40.0)
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


class Event(NamedTuple):
    kind: str
    at_s: float
    about: Any


class Recorder(PolicyRouter):
    """Notes in order what a dispatcher sees and does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.events: list[Event] = []

    def planned(self, standing: Standing, found: Plan, now_s: float) -> None:
        self.events.append(Event("plan", now_s, (standing, found)))

    def route(self, job: Job, cluster: SimCluster) -> Assignment:
        route = super().route(job, cluster)
        self.events.append(Event("book", cluster.now_s, job))
        return route

    def prefilled(self, job: Job) -> None:
        super().prefilled(job)
        self.events.append(Event("prefilled", 0.0, job))

    def moved(self, job: Job) -> None:
        super().moved(job)
        self.events.append(Event("moved", 0.0, job))

    def finished(self, job: Job, cluster: SimCluster) -> None:
        super().finished(job, cluster)
        route = job.route
        moved = (route.prefill.name, route.worker.name, job.kv_bytes, job.kv_s) if _read(job) else None
        self.events.append(Event("finished", cluster.now_s, (job, moved)))

    def tick(self, cluster: SimCluster) -> None:
        super().tick(cluster)
        for meter in self.meters():
            self.events.append(Event("report", cluster.now_s, meter.last_report))

    def meters(self) -> list[Meter]:
        return list(self.fleet.meters.values()) if self.fleet is not None else []


def _read(job: Job) -> bool:
    return bool(job.route and job.route.prefill is not None and job.kv_bytes)


class Replay:
    """The same events, as they reach a frontend."""

    def __init__(self, recorder: Recorder, table: Table, policy: str) -> None:
        self._cluster = Frontend(lambda _url: _NO_POOL, logging.getLogger("test"))
        self._cluster.update({w.id: _record(w) for w in recorder.meters()}, 0.0)
        self._links = Links()
        tables = FakeTables(table)
        self._router = Router(self._cluster, policies.make(policy), tables, self._links, 1e6)
        self._open: dict[int, tuple[Reservation | None, Reservation]] = {}

    def plan(self, standing: Standing, now_s: float) -> tuple[Any, ...]:
        request = Chat().parse(BODY, {}, Prefixes())
        session = Session("s")
        session.decode_worker, session.prefill_worker = standing.home, standing.prefill
        mark = Mark(1, 2, 1, 0, 0)
        if standing.pullback_from:
            session.pullback = Pullback({}, mark.after, standing.pullback_from, 1e9)
        match = Match(session, mark, True, 1) if standing.known else None
        known = Known(session, match, standing.turn, not standing.known, standing.n_out_mean)
        found = self._router.plan(request, known, "any", now_s)
        prefill = found.prefill.id if found.prefill else ""
        return found.path, found.reason, found.decode.id, prefill, found.cached, found.decision, found.seen

    def book(self, job: Job) -> None:
        turn, route, workers = job.note.turn, job.route, self._cluster.workers
        assert route is not None
        lacks = turn.prompt - turn.d_cached
        prefill = workers[route.prefill.name] if route.prefill else None
        on_p = Reservation(prefill, turn.prompt - turn.p_cached) if prefill else None
        on_d = Reservation(
            workers[route.worker.name], 0 if prefill else lacks, prefill, lacks if prefill else 0
        )
        on_d.__enter__()
        if on_p is not None:
            on_p.__enter__()
        self._open[id(job)] = on_p, on_d

    def apply(self, event: Event) -> None:
        kind, now_s, about = event
        if kind == "book":
            self.book(about)
        elif kind == "report":
            self._cluster.report(about, now_s)
        elif kind == "prefilled":
            self._open[id(about)][0].__exit__(None, None, None)
        elif kind == "moved":
            self._open[id(about)][1].prefilled() if about.route.prefill else None
        else:
            job, moved = about
            self._open.pop(id(job))[1].__exit__(None, None, None)
            if moved:
                self._links.observe(*moved)


class FakeTables(Tables):
    """One table for every model."""

    def __init__(self, table: Table) -> None:
        self._one = table

    def table(self, model: str, placement: str) -> Table:
        return self._one

    def weights(self, table: Table | None, slo: str) -> Weights:
        return WEIGHTS


class FakePool:
    def close(self) -> None: ...


_NO_POOL: Any = FakePool()


def _record(meter: Meter) -> WorkerRecord:
    role = meter.worker.role
    return WorkerRecord(
        worker_id=meter.id,
        name=meter.id,
        role=role,
        model="m",
        url="",
        status=WorkerStatus.READY,
        bidirectional=role is Role.PREFILL,
        kv_bytes_per_token=meter.worker.kv_bytes_per_token,
        max_batch_tokens=meter.max_batch_tokens,
    )


@pytest.mark.parametrize("placement", ["2P2D", "1P2D1R", "2R", "1P1D"])
@pytest.mark.parametrize("policy", ["adaptive", "static:x=1", "kairos"])
def test_the_frontend_plans_every_turn_as_the_simulator_does(
    placement: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(seeds.load(seeds.name("2P2D")))
    recorder = Recorder(policies.make(policy), table, WEIGHTS, placement, pullback=True, seed=3)
    _record_plans(recorder, monkeypatch)
    chats = workloads.generate(workloads.SHAREGPT, 4.0, 60.0, 5)
    SimCluster(fleet(placement), recorder).run(chats)
    replay = Replay(recorder, table, policy)
    compared = 0
    for event in recorder.events:
        if event.kind != "plan":
            replay.apply(event)
            continue
        standing, found = event.about
        expected = (
            *(found.route, found.reason, found.worker.worker_id),
            found.prefill.worker_id if found.prefill else "",
            *(found.at_home, found.decision, found.worker),
        )
        assert replay.plan(standing, event.at_s) == expected, f"turn {compared}"
        compared += 1
    assert compared > 200
    if placement == "2P2D" and policy == "adaptive":
        routes = {e.about[1].route for e in recorder.events if e.kind == "plan"}
        assert {Route.P_D, Route.D_LOCAL} <= routes


def _record_plans(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the simulator's router asks of the core, and what it gets."""
    from ppd.core.plan import plan
    from simulator import router

    def noted(standing: Standing, view: Any, *rest: Any) -> Plan:
        found = plan(standing, view, *rest)
        recorder.planned(standing, found, view.now_s)
        return found

    monkeypatch.setattr(router, "plan", noted)
