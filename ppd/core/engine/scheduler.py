"""Who takes part in a step: the token budget, admission, chunks of prompts, preemption."""

from collections import deque

from ppd.core.engine.blocks import BlockPool
from ppd.core.engine.config import EngineConfig
from ppd.core.engine.request import Request, Where


class Scheduler:
    """vLLM's: those who run go on first, then those who wait are admitted in order, as memory allows."""

    def __init__(self, pool: BlockPool, config: EngineConfig) -> None:
        self.pool = pool
        self.config = config
        self.waiting: deque[Request] = deque()
        self.pulling: dict[str, Request] = {}
        self.running: list[Request] = []
        self.chunks: list[tuple[Request, int]] = []  # of the step under way: who computes prompt, how much
        self.preempted = 0

    def start_step(self) -> list[Request]:
        """Choose who takes part; those whose KV is to be fetched now."""
        budget = self._continue_running()
        return self._admit_waiting(budget) if self.waiting else []

    def longest_run(self, at_most: int) -> int:
        """Steps until the first answer ends, as far as blocks surely last."""
        steps = min(r.output_tokens - r.generated for r in self.running)
        steps = min(steps, at_most)
        size, batch = self.pool.block_size, len(self.running)
        sure = 1 + (self.pool.available // batch) * size  # the first step's blocks are there already
        return min(steps, sure)

    def _continue_running(self) -> int:
        """Blocks for everyone's next token and the rest of begun prompts; the budget that is left."""
        budget = self.config.max_batch_tokens
        preempted = self.preempted
        running, size = self.running, self.pool.block_size
        i = 0
        while i < len(running):
            request = running[i]
            left = request.prompt_tokens + request.generated - request.computed
            if left == 1 and request.generated and request.computed < request.blocks * size:
                budget -= 1
                i += 1
                continue
            n = min(left, budget)
            if not self._make_room(request, request.computed + n):
                break
            budget -= n
            if left > 1 or request.generated == 0:
                self.chunks.append((request, n))
            i += 1
        return budget if self.preempted == preempted else 0

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Blocks for `tokens` tokens, at the cost of who came last; False if that was `request` itself."""
        while not self.pool.grow(request, tokens):
            victim = self.running.pop()
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _admit_waiting(self, budget: int) -> list[Request]:
        pulls: list[Request] = []
        while self.waiting and budget > 0 and len(self.running) < self.config.max_seqs:
            request = self.waiting[0]
            if request.blocks == 0 and not self._admit(request, budget):
                return pulls
            if request.pull_tokens:
                self.waiting.popleft()
                self._begin_pull(request)
                pulls.append(request)
                continue
            n = min(request.tokens - request.computed, budget)
            if not self.pool.grow(request, request.computed + n):
                return pulls
            self.waiting.popleft()
            request.where = Where.RUNNING
            self.running.append(request)
            self.chunks.append((request, n))
            budget -= n
        return pulls

    def usable_hit(self, request: Request) -> int:
        """Cached blocks; never all of the prompt, since its last token has to be computed for an answer."""
        return self.pool.cached_blocks(request.keys, (request.tokens - 1) // self.pool.block_size)

    def _admit(self, request: Request, budget: int) -> bool:
        """Blocks for what is cached, and for all that a pull brings or the first chunk computes."""
        hit = self.usable_hit(request)
        cached = hit * self.pool.block_size
        first = request.tokens if request.pull_tokens > cached else min(request.tokens, cached + budget)
        if not self.pool.admit(request, hit, first):
            return False
        request.computed = cached
        self.pool.queried_tokens += request.tokens
        self.pool.hit_tokens += cached
        if request.cached_tokens < 0:
            request.cached_tokens = cached
        return True

    def _begin_pull(self, request: Request) -> None:
        request.where = Where.PULLING
        request.pulled_tokens = max(0, min(request.pull_tokens, request.tokens) - request.computed)
        request.pull_tokens = 0  # one try: what does not come is recomputed
        self.pulling[request.request_id] = request

    def _preempt(self, request: Request) -> None:
        """Its blocks go; prompt and answer so far are computed again later."""
        self.pool.release(request)
        self.chunks = [chunk for chunk in self.chunks if chunk[0] is not request]
        request.computed = 0
        request.preemptions += 1
        request.where = Where.WAITING
        self.waiting.appendleft(request)
        self.preempted += 1
