"""One engine: continuous batching, chunked prefill under a token budget, preemption, hand-off.

Time moves in steps. Where nothing can change for a while (decodes only, nobody to be admitted), a run of many
equal steps is taken as one, in closed form, and cut at a step's end when something arrives.
"""

from collections.abc import Iterator
from math import inf

from ppd.core.engine import steptime
from ppd.core.engine.blocks import BlockPool
from ppd.core.engine.config import EngineConfig
from ppd.core.engine.request import Event, EventKind, Request, RequestTooLargeError, Where
from ppd.core.engine.scheduler import Scheduler
from ppd.core.hardware import HardwareProfile

_MAX_RUN_STEPS = 256  # attention is taken as linear in the context over one run


class Engine:
    """Submit, then `advance` to `next_s` again and again. Not thread-safe; no clock of its own."""

    def __init__(
        self, profile: HardwareProfile, config: EngineConfig, max_run_steps: int = _MAX_RUN_STEPS
    ) -> None:
        self.profile = profile
        self.config = config
        self.pool = BlockPool(config.kv_capacity_tokens // config.block_size_tokens, config.block_size_tokens)
        self._max_run_steps = max_run_steps
        self._batch = Scheduler(self.pool, config)
        # In order of expiry: the lease's length is one for all.
        self._leases: dict[str, tuple[float, Request]] = {}
        self._run_steps = 0  # of the run of pure decode steps under way
        self._context = 0  # of all who decode, when that run began
        self._begin_s = 0.0
        self._end_s = inf
        self._stalled_s = 0.0  # no step goes on before
        # Counters that only grow.
        self.steps = 0
        self.busy_s = 0.0
        self.prefilled_tokens = 0
        self.generated_tokens = 0
        self.prefill_steps = 0
        self.prefill_busy_s = 0.0  # in them
        self.itl_s = 0.0  # between tokens of one sequence, summed
        self.itl_count = 0

    # --- what others ask ---

    @property
    def next_s(self) -> float:
        """When `advance` has something to do; inf when idle."""
        return min(self._end_s, next(iter(self._leases.values()))[0]) if self._leases else self._end_s

    @property
    def running(self) -> int:
        return len(self._batch.running)

    @property
    def waiting(self) -> int:
        return len(self._batch.waiting) + len(self._batch.pulling)

    @property
    def preempted(self) -> int:
        return self._batch.preempted

    @property
    def leased(self) -> int:
        return len(self._leases)

    @property
    def kv_use(self) -> float:
        return self.pool.in_use / self.pool.capacity

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens accepted and not computed yet; what the cache will spare them is not known."""
        pending = sum(r.tokens - r.computed for r in self._batch.waiting)
        return pending + sum(left for r in self._batch.running if (left := r.tokens - r.computed) > 1)

    def cached_tokens(self, request: Request) -> int:
        """Of its prompt, the tokens that this engine would not have to compute now."""
        return self._batch.usable_hit(request) * self.pool.block_size

    def requests(self) -> Iterator[Request]:
        """All that have not ended."""
        yield from self._batch.running
        yield from self._batch.waiting
        yield from self._batch.pulling.values()

    # --- what others do ---

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request; call `advance(now_s)` then. Raises RequestTooLargeError if it can never run."""
        if self.pool.blocks_for(request.prompt_tokens + request.output_tokens) > self.pool.capacity:
            raise RequestTooLargeError(
                f"{request.prompt_tokens} + {request.output_tokens} tokens exceed the KV memory of "
                f"{self.pool.capacity * self.pool.block_size} tokens"
            )
        request.arrived_s = now_s
        request.where = Where.WAITING
        self._batch.waiting.append(request)
        self._wake(now_s)

    def pulled(self, request: Request, now_s: float, ok: bool = True) -> None:
        """The answer to a PULL event: the content has come, or has not (then it is recomputed)."""
        if self._batch.pulling.pop(request.request_id, None) is None:
            return
        request.where = Where.WAITING
        if ok:
            request.computed = min(request.computed + request.pulled_tokens, request.tokens - 1)
            self.pool.publish(request)
        else:
            request.pulled_tokens = 0
        self._batch.waiting.appendleft(request)
        self._wake(now_s)

    def abort(self, request: Request, now_s: float) -> None:
        """Stop a request wherever it is; one in the step under way leaves at that step's end."""
        if request.where is Where.RUNNING:
            request.aborted = True
            self._wake(now_s)
            return
        if request.where is Where.WAITING:
            self._batch.waiting.remove(request)
        elif request.where is Where.PULLING:
            del self._batch.pulling[request.request_id]
        elif self._leases.pop(request.request_id, None) is None:
            return
        request.where = Where.DONE
        self.pool.release(request)
        self._wake(now_s)

    def release(self, request_id: str, now_s: float) -> bool:
        """End a lease: its blocks were read. False if there is none of that name."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return False
        self.pool.release(lease[1])
        if self._batch.waiting:
            self._wake(now_s)
        return True

    def renew(self, request_id: str, now_s: float) -> bool:
        """Start a lease's time anew. False if there is none of that name."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return False
        self._leases[request_id] = (now_s + self.config.lease_s, lease[1])
        return True

    def stall(self, now_s: float, until_s: float) -> None:
        """The engine waits for something else: the step that begins now, or the next, begins only then."""
        since_s = max(now_s, self._stalled_s)
        if until_s > since_s:
            self._end_s += until_s - since_s
            self._stalled_s = until_s

    def advance(self, now_s: float) -> list[Event]:
        """Run every step that ends by `now_s`; what happened, in order."""
        events: list[Event] = []
        while True:
            while self._leases and (lease := next(iter(self._leases.values())))[0] <= min(now_s, self._end_s):
                expiry, request = lease
                self.release(request.request_id, expiry)
                events.append(Event(EventKind.LEASE_EXPIRED, request, expiry))
            at_s = self._end_s
            if at_s > now_s:
                return events
            self._finish_step(at_s, events)
            self._start_step(at_s, events)

    # --- one step ---

    def _start_step(self, at_s: float, events: list[Event]) -> None:
        """Choose who takes part, and when it ends."""
        batch = self._batch
        events += [Event(EventKind.PULL, request, at_s) for request in batch.start_step()]
        self._begin_s = at_s
        self._run_steps = 0
        if batch.chunks:
            self._end_s = at_s + steptime.mixed_step_s(self.profile, self.config, batch.running, batch.chunks)
        elif batch.running:
            self._run_steps = batch.longest_run(self._max_run_steps)
            self._context = sum(r.computed for r in batch.running)
            self._end_s = at_s + self._run_s(self._run_steps)
        else:
            self._end_s = inf

    def _finish_step(self, at_s: float, events: list[Event]) -> None:
        self.busy_s += self._end_s - self._begin_s
        if self._batch.chunks:
            self._finish_mixed(at_s, events)
        elif self._run_steps:
            self._finish_run(at_s, events)

    def _finish_mixed(self, at_s: float, events: list[Event]) -> None:
        """One step with prefill in it."""
        took_s = at_s - self._begin_s
        self.steps += 1
        self.prefill_steps += 1
        self.prefill_busy_s += took_s
        batch = self._batch
        decoding = len(batch.running) - len(batch.chunks)
        self.itl_s += took_s * decoding
        self.itl_count += decoding
        sizes = {id(request): n for request, n in batch.chunks}
        batch.chunks = []
        going: list[Request] = []
        for request in batch.running:
            n = sizes.get(id(request))
            if n is None:
                request.computed += 1
            else:
                self.prefilled_tokens += n
                request.computed += n
                self.pool.publish(request)
            if request.computed == request.tokens:
                self._emit(request, 1, at_s)
                if request.generated == 1:
                    request.first_token_s = at_s
                    events.append(Event(EventKind.FIRST, request, at_s))
            if self._leave_if_over(request, at_s, events):
                continue
            going.append(request)
        batch.running = going

    def _finish_run(self, at_s: float, events: list[Event]) -> None:
        """A run of decode steps: everyone has as many tokens more."""
        steps, self._run_steps = self._run_steps, 0
        self.steps += steps
        running = self._batch.running
        self.itl_s += (at_s - self._begin_s) * len(running)
        self.itl_count += steps * len(running)
        pool, size = self.pool, self.pool.block_size
        going: list[Request] = []
        for request in running:
            request.computed += steps
            if request.computed > request.blocks * size and not pool.grow(request, request.computed):
                raise RuntimeError("a run of steps was longer than the blocks at hand allow")
            self._emit(request, steps, at_s)
            if self._leave_if_over(request, at_s, events):
                continue
            going.append(request)
        self._batch.running = going

    def _emit(self, request: Request, tokens: int, at_s: float) -> None:
        request.generated += tokens
        request.last_token_s = at_s
        self.generated_tokens += tokens

    def _leave_if_over(self, request: Request, at_s: float, events: list[Event]) -> bool:
        if request.aborted:
            request.where = Where.DONE
            self.pool.release(request)
            return True
        if request.generated < request.output_tokens:
            return False
        request.where = Where.DONE
        if request.lease:
            self.pool.publish(request)
            self._leases[request.request_id] = (at_s + self.config.lease_s, request)
        else:
            self.pool.release(request)
        events.append(Event(EventKind.FINISHED, request, at_s))
        return True

    # --- runs of steps ---

    def _run_s(self, steps: int) -> float:
        return steptime.run_s(self.profile, self.config, len(self._batch.running), self._context, steps)

    def _wake(self, now_s: float) -> None:
        """Something changed: the run under way ends with its present step; an idle engine starts at once."""
        if self._end_s == inf:
            self._begin_s = self._end_s = max(now_s, self._stalled_s)
            return
        if self._run_steps <= 1:
            return
        low = steptime.steps_by(self._run_s, self._run_steps, now_s - self._begin_s)
        if low < self._run_steps:
            self._run_steps = low
            self._end_s = max(self._begin_s + self._run_s(low), self._stalled_s)
