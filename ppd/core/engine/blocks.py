"""KV memory in blocks, with a prefix cache and LRU eviction, as in vLLM.

A block is in use (by any number of requests), idle (its content can still be found, its memory taken), or
free. Requests give their blocks back tail first, so the tail of a conversation is evicted before its head,
and what is cached of any sequence is always a prefix of it.
"""

from collections import OrderedDict
from collections.abc import Sequence

from ppd.core.engine.request import Request


class BlockPool:
    """All KV blocks of one engine."""

    def __init__(self, capacity_blocks: int, block_size_tokens: int) -> None:
        if capacity_blocks < 1 or block_size_tokens < 1:
            raise ValueError("a pool needs at least one block of at least one token")
        self.capacity = capacity_blocks
        self.block_size = block_size_tokens
        self._references: dict[int, int] = {}  # in use, by key
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._unkeyed = 0  # in use, not full or not computed yet
        self.evicted = 0
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def in_use(self) -> int:
        return len(self._references) + self._unkeyed

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that a request could get now."""
        return self.capacity - len(self._references) - self._unkeyed

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def cached_blocks(self, keys: Sequence[int], limit: int) -> int:
        """How many of the first `limit` blocks are here. A bisection, since what is cached is a prefix."""
        references, idle = self._references, self._idle
        low, high = 0, min(limit, len(keys))
        while low < high:
            middle = (low + high + 1) // 2
            key = keys[middle - 1]
            if key in references or key in idle:
                low = middle
            else:
                high = middle - 1
        return low

    def admit(self, request: Request, hit: int, tokens: int) -> bool:
        """Take `hit` cached blocks and the new ones that `tokens` tokens need; False if there is no room."""
        references, idle = self._references, self._idle
        keys = request.keys[:hit]
        woken = sum(1 for key in keys if key in idle)
        new = self.blocks_for(tokens) - hit
        if woken + new > self.available:
            return False
        for key in keys:
            if key in references:
                references[key] += 1
            else:
                del idle[key]
                references[key] = 1
        request.blocks = hit
        request.keyed = hit
        self._take(request, new)
        return True

    def grow(self, request: Request, tokens: int) -> bool:
        """See to it that `request` holds blocks for `tokens` tokens; False if there is no room."""
        new = -(-tokens // self.block_size) - request.blocks
        if new <= 0:
            return True
        if new > self.available:
            return False
        self._take(request, new)
        return True

    def publish(self, request: Request) -> None:
        """Make the full blocks of what is computed findable for others."""
        full = min(request.computed // self.block_size, len(request.keys))
        references = self._references
        for i in range(request.keyed, full):
            key = request.keys[i]
            self._unkeyed -= 1
            if key in references:
                references[key] += 1
            else:
                self._idle.pop(key, None)
                references[key] = 1
        request.keyed = max(full, request.keyed)

    def release(self, request: Request) -> None:
        """Give all of its blocks back, tail first; full ones can be found, published before or not."""
        references, idle, keys = self._references, self._idle, request.keys
        self._unkeyed -= request.blocks - request.keyed
        for i in range(min(request.computed // self.block_size, len(keys)) - 1, request.keyed - 1, -1):
            key = keys[i]
            if key not in references:
                idle.pop(key, None)
                idle[key] = None
        for i in range(request.keyed - 1, -1, -1):
            key = keys[i]
            count = references[key]
            if count == 1:
                del references[key]
                idle[key] = None
            else:
                references[key] = count - 1
        request.blocks = 0
        request.keyed = 0

    def evict(self, blocks: int) -> int:
        """Forget up to `blocks` idle blocks, the least recently used first; how many it were."""
        count = min(blocks, len(self._idle))
        for _ in range(count):
            self._idle.popitem(last=False)
        self.evicted += count
        return count

    def _take(self, request: Request, new: int) -> None:
        self._unkeyed += new
        request.blocks += new
        over = len(self._references) + self._unkeyed + len(self._idle) - self.capacity
        if over > 0:
            self.evict(over)
