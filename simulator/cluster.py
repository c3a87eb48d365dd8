"""Engines, links and clients in virtual time: a heap of events, and nothing that is not one of them."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from ppd.core.engine import Engine, EngineConfig, Event, EventKind, Link, Port, Request, RequestTooLargeError
from ppd.core.hardware import HardwareProfile
from ppd.core.names import Reason, Role, Route
from simulator.conversation import Conversation


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    name: str
    role: Role
    profile: HardwareProfile
    config: EngineConfig


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    workers: tuple[WorkerSpec, ...]
    link: Link
    request_s: float = 0.0  # HTTP, tokenizing and detokenizing: of each request, whatever its path
    crowd_s: float = 0.0  # and so much longer for each sequence that the engine runs: one process relays all
    handoff_s: float = 0.0  # between P's answer and D's admission: the second leg's own part of `request_s`
    push_s: float = 0.0  # where P sends, of its last step: D takes in one such push after another
    client_limit: int = 0  # conversations that clients hold at once; 0 = any number
    timeout_s: float = inf  # of a turn


class SimWorker:
    """One engine and its ports."""

    def __init__(self, index: int, spec: WorkerSpec) -> None:
        self.index = index
        self.name = spec.name
        self.role = spec.role
        self.engine = Engine(spec.profile, spec.config)
        self.kv_bytes_per_token = spec.profile.file.kv_bytes_per_token
        self.egress = Port()
        self.ingress = Port()
        self.armed_s = inf
        self.pushed_s = -inf  # when what P workers push here was all in
        self.pushed_by = (-1, 0.0)  # which P was the last, and when


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a turn goes. `prefill` is None where one worker does it all."""

    path: Route
    worker: SimWorker
    prefill: SimWorker | None = None
    reason: Reason = Reason.POLICY
    pullback: bool = False  # P first pulls from the worker
    hold: bool = False  # the worker keeps the blocks for a pull-back


@dataclass(slots=True, eq=False)
class Job:
    """One turn of one conversation, and what became of it."""

    conversation: Conversation
    index: int
    asked_s: float  # when the client wanted it, its own queue included
    n_ctx: int
    n_in: int
    n_out: int
    sent_s: float = 0.0
    route: Assignment | None = None
    first_s: float = 0.0
    end_s: float = 0.0
    kv_bytes: int = 0
    kv_s: float = 0.0
    cached_p: int = -1
    cached_d: int = -1
    failed: bool = False
    on_p: Request | None = None
    on_d: Request | None = None
    note: Any = None  # the router's own

    @property
    def prompt(self) -> int:
        return self.n_ctx + self.n_in

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.asked_s

    @property
    def tpot_s(self) -> float:
        return (self.end_s - self.first_s) / (self.n_out - 1) if self.n_out > 1 else 0.0

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.asked_s


class Router(Protocol):
    def route(self, job: Job, cluster: "SimCluster") -> Assignment: ...
    def prefilled(self, job: Job) -> None: ...
    def moved(self, job: Job) -> None:
        """What P computed is on D, or never will be."""

    def finished(self, job: Job, cluster: "SimCluster") -> None: ...
    def tick(self, cluster: "SimCluster") -> None:
        """Every `tick_s` of virtual time, while there is anything to do."""

    tick_s: float


@dataclass(slots=True)
class _Clients:
    active: int = 0
    waiting: deque[Conversation] = field(default_factory=deque)


class SimCluster:
    """Run it once: `run(conversations)` gives every turn in the order of its end."""

    def __init__(self, spec: ClusterSpec, router: Router) -> None:
        self.spec = spec
        self.router = router
        self.workers = [SimWorker(i, w) for i, w in enumerate(spec.workers)]
        self.link = spec.link
        self.now_s = 0.0
        self.jobs: list[Job] = []
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._serial = 0
        self._clients = _Clients()
        self._by_request: dict[str, Job] = {}
        self._open = 0  # conversations that are not over
        self._asked: dict[int, Job] = {}  # conversation -> its turn under way
        self.stop_s = inf  # nothing happens after it

    def of(self, role: Role) -> list[SimWorker]:
        return [worker for worker in self.workers if worker.role is role]

    def at(self, when_s: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Have `call(argument)` done at a virtual time; equal times in the order of asking."""
        self._serial += 1
        heappush(self._heap, (when_s, self._serial, call, argument))

    def run(self, conversations: Iterable[Conversation]) -> list[Job]:
        for conversation in conversations:
            self._open += 1
            self.at(conversation.start_s, self._arrive, conversation)
        if self.router.tick_s < inf:
            self.at(0.0, self._tick)
        heap = self._heap
        while heap and self._open and heap[0][0] <= self.stop_s:
            self.now_s, _, call, argument = heappop(heap)
            call(argument)
        return self.jobs

    def open_jobs(self) -> list[Job]:
        """Turns that were asked and are not over."""
        return list(self._asked.values())

    # --- clients -----------------------------------------------------------------------------------

    def _tick(self, _: None) -> None:
        self.router.tick(self)
        self.at(self.now_s + self.router.tick_s, self._tick)

    def _arrive(self, conversation: Conversation) -> None:
        clients = self._clients
        if self.spec.client_limit and clients.active >= self.spec.client_limit:
            clients.waiting.append(conversation)
            return
        clients.active += 1
        self._ask(self._job(conversation, 0, conversation.start_s))

    def _job(self, conversation: Conversation, index: int, asked_s: float) -> Job:
        turn = conversation.turns[index]
        return Job(conversation, index, asked_s, conversation.context(index), turn.n_in, turn.n_out)

    def _ask(self, job: Job) -> None:
        job.sent_s = self.now_s
        self._asked[job.conversation.id] = job
        job.route = self.router.route(job, self)
        first = job.route.prefill or job.route.worker
        self.at(self.now_s + self.spec.request_s + self._crowd_s(first), self._enter, job)

    def _crowd_s(self, worker: SimWorker) -> float:
        return self.spec.crowd_s * worker.engine.running

    def _over(self, conversation: Conversation) -> None:
        self._open -= 1
        clients = self._clients
        clients.active -= 1
        if clients.waiting:
            clients.active += 1
            waiting = clients.waiting.popleft()
            self._ask(self._job(waiting, 0, waiting.start_s))

    # --- engines -----------------------------------------------------------------------------------

    def _enter(self, job: Job) -> None:
        """The first engine gets the request."""
        route = job.route
        assert route is not None  # noqa: S101
        if route.prefill is None:
            self._submit_decode(job)
            return
        pull = job.n_ctx - 1 if route.pullback else 0  # the last answer's last token has no KV yet
        job.on_p = self._request(job, "p", route.prefill, 1, pull, lease=True)
        self._submit(route.prefill, job.on_p, job)

    def _submit_decode(self, job: Job) -> None:
        route = job.route
        assert route is not None  # noqa: S101
        pull = job.prompt if route.prefill is not None else 0
        job.on_d = self._request(job, "d", route.worker, job.n_out, pull, lease=route.hold)
        self._submit(route.worker, job.on_d, job)

    def _request(self, job: Job, leg: str, worker: SimWorker, n_out: int, pull: int, lease: bool) -> Request:
        conversation = job.conversation
        return Request(
            f"{conversation.id}.{job.index}{leg}",
            conversation.keys(job.index, worker.engine.pool.block_size),
            job.prompt,
            n_out,
            pull_tokens=pull,
            lease=lease,
        )

    def _submit(self, worker: SimWorker, request: Request, job: Job) -> None:
        self._by_request[request.request_id] = job
        try:
            worker.engine.submit(request, self.now_s)
        except RequestTooLargeError:
            job.failed = True
            self._finish(job)
            return
        self._advance(worker)

    def _step(self, worker: SimWorker) -> None:
        if worker.armed_s == self.now_s:  # else it was armed anew for another time
            worker.armed_s = inf
            self._advance(worker)

    def _advance(self, worker: SimWorker) -> None:
        if worker.engine.next_s <= self.now_s:
            for event in worker.engine.advance(self.now_s):
                self._on_event(worker, event)
        next_s = worker.engine.next_s
        if next_s < worker.armed_s:
            worker.armed_s = next_s
            self.at(next_s, self._step, worker)

    def _on_event(self, worker: SimWorker, event: Event) -> None:
        kind, request, _ = event
        if kind is EventKind.LEASE_EXPIRED:
            return
        job = self._by_request[request.request_id]
        on_p = request is job.on_p
        if kind is EventKind.PULL:
            self._pull(job, worker, request, on_p)
        elif kind is EventKind.FIRST and not on_p:
            job.first_s = self.now_s
        elif kind is EventKind.FINISHED:
            del self._by_request[request.request_id]
            if on_p:
                job.cached_p = request.cached_tokens
                self.router.prefilled(job)
                assert job.route is not None  # noqa: S101
                leg_s = self.spec.handoff_s + self._crowd_s(job.route.worker)
                self.at(self._pushed(worker, job) + leg_s, self._submit_decode, job)
            else:
                job.cached_d = request.cached_tokens
                self._finish(job)

    def _pushed(self, prefill: SimWorker, job: Job) -> float:
        """When D has what P's step, which ends now, sent. Another P in its way holds it up, and P with it;
        what one step sends passes one by one anyway."""
        push_s = self.spec.push_s
        if not push_s:
            return self.now_s
        assert job.route is not None  # noqa: S101
        decode, step = job.route.worker, (prefill.index, self.now_s)
        if decode.pushed_by != step:
            decode.pushed_by = step
            decode.pushed_s = max(self.now_s - push_s, decode.pushed_s) + push_s
            prefill.engine.stall(self.now_s, decode.pushed_s)
        return decode.pushed_s

    def _pull(self, job: Job, worker: SimWorker, request: Request, on_p: bool) -> None:
        route = job.route
        assert route is not None  # noqa: S101
        source = route.worker if on_p else route.prefill
        assert source is not None  # noqa: S101
        lease = f"{job.conversation.id}.{job.index - 1}d" if on_p else f"{job.conversation.id}.{job.index}p"
        if not source.engine.renew(lease, self.now_s):
            self.at(self.now_s, self._pulled, (worker, request, source, lease, False))
            return
        n_bytes = request.pulled_tokens * worker.kv_bytes_per_token
        done_s = self.link.transfer(source.egress, worker.ingress, n_bytes, self.now_s)
        job.kv_bytes += n_bytes
        job.kv_s += done_s - self.now_s
        self.at(done_s, self._pulled, (worker, request, source, lease, True))

    def _pulled(self, pull: tuple[SimWorker, Request, SimWorker, str, bool]) -> None:
        worker, request, source, lease, ok = pull
        job = self._by_request[request.request_id]
        if request is not job.on_p:
            self.router.moved(job)
        worker.engine.pulled(request, self.now_s, ok)
        if ok and source.engine.release(lease, self.now_s):
            self._advance(source)
        self._advance(worker)

    def _finish(self, job: Job) -> None:
        job.end_s = self.now_s
        job.failed = job.failed or job.e2e_s > self.spec.timeout_s
        self.jobs.append(job)
        del self._asked[job.conversation.id]
        self.router.finished(job, self)
        conversation = job.conversation
        if job.index + 1 == len(conversation.turns):
            self._over(conversation)
            return
        asked_s = self.now_s + conversation.turns[job.index + 1].think_s
        self.at(asked_s, self._ask, self._job(conversation, job.index + 1, asked_s))
