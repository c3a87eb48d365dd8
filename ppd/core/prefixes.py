"""What each engine should hold in its prefix cache, whoever put it there.

A prompt is named by a chain of keys: one per message boundary, and one at each stride inside a long message.
Equal keys mean equal beginnings: a prompt shares with an engine all that lies before the deepest of its keys
that the engine has.

This is an estimate. It holds no more per engine than the engine's KV capacity and drops what was used least
recently, as vLLM's prefix cache does; `cached_tokens` of each answer corrects it.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

HOLDERS = 4  # engines that one lookup names: more would only cost time
_NEAR = 16  # keys at the end of a chain that are tried one by one
_ROOM = 1024  # of a heap, entries that may be stale before it is made anew


class Marks(NamedTuple):
    """The keys of a prompt, the longest prefix last, and how many bytes of text lie before each."""

    keys: tuple[int, ...]
    bytes: tuple[int, ...]

    def tokens(self, prompt_tokens: int) -> list[int]:
        """Prompt tokens before each key, taken as even over the text."""
        whole = self.bytes[-1] if self.bytes else 0
        return [prompt_tokens * each // whole for each in self.bytes] if whole else [0] * len(self.bytes)


NOTHING = Marks((), ())


class _Node:
    __slots__ = ("children", "key", "parent", "tokens", "used")

    def __init__(self, key: int, parent: "_Node | None", tokens: int, used: int) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens  # before its key
        self.used = used
        self.children = 0

    @property
    def own_tokens(self) -> int:
        return max(0, self.tokens - (self.parent.tokens if self.parent is not None else 0))


class _Engine:
    """The tree of one engine's prefixes. Only leaves are evicted, least recently used first."""

    __slots__ = ("_heap", "capacity_tokens", "nodes", "used_tokens")

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self.nodes: dict[int, _Node] = {}
        self.used_tokens = 0
        self._heap: list[tuple[int, int]] = []  # (used, key) of leaves; stale entries are skipped

    def depth(self, keys: Sequence[int]) -> int:
        """How many of the chain's keys it has."""
        return _deepest(keys, self.nodes.__contains__)

    def put(self, key: int, parent: _Node | None, tokens: int, used: int) -> _Node:
        node = self.nodes[key] = _Node(key, parent, tokens, used)
        if parent is not None:
            parent.children += 1
        self.used_tokens += node.own_tokens
        return node

    def touch(self, key: int, used: int) -> None:
        node = self.nodes[key]
        node.used = used
        if not node.children:
            heapq.heappush(self._heap, (used, key))
        if len(self._heap) > 2 * len(self.nodes) + _ROOM:
            self._heap = [(n.used, k) for k, n in self.nodes.items() if not n.children]
            heapq.heapify(self._heap)

    def take(self, key: int) -> None:
        """Remove a leaf."""
        node = self.nodes.pop(key)
        self.used_tokens -= node.own_tokens
        parent = node.parent
        if parent is not None:
            parent.children -= 1
            if not parent.children:
                heapq.heappush(self._heap, (parent.used, parent.key))

    def evicted(self) -> Iterator[int]:
        """Evict until the rest fits; yields each key that is gone."""
        while self.used_tokens > self.capacity_tokens and self._heap:
            used, key = heapq.heappop(self._heap)
            node = self.nodes.get(key)
            if node is not None and not node.children and node.used == used:
                self.take(key)
                yield key


class PrefixIndex:
    """All engines' prefixes. Nothing grows with a history's length but what is new of it."""

    def __init__(self, max_keys: int) -> None:
        """`max_keys`: of all engines together; beyond it nothing new is taken up."""
        self._max_keys = max_keys
        self._engines: dict[str, _Engine] = {}
        self._holders: dict[int, dict[str, None]] = {}
        self._count = 0
        self._now = 0

    def __len__(self) -> int:
        """Keys held, each counted for each engine."""
        return self._count

    def add(self, worker: str, marks: Marks, prompt_tokens: int, capacity_tokens: int) -> None:
        """`worker` has computed or read a whole prompt."""
        if not marks.keys or capacity_tokens <= 0:
            return
        engine = self._engines.get(worker)
        if engine is None:
            engine = self._engines[worker] = _Engine(capacity_tokens)
        engine.capacity_tokens = capacity_tokens
        self._now += 1
        depth = engine.depth(marks.keys)
        node = engine.nodes[marks.keys[depth - 1]] if depth else None
        if depth < len(marks.keys):
            tokens = marks.tokens(prompt_tokens)
            for at in range(depth, len(marks.keys)):
                if self._count >= self._max_keys:
                    break
                key = marks.keys[at]
                node = engine.put(key, node, tokens[at], self._now)
                self._holders.setdefault(key, {})[worker] = None
                self._count += 1
                depth = at + 1
        if depth:
            engine.touch(marks.keys[depth - 1], self._now)
        for key in engine.evicted():
            self._forget(key, worker)

    def correct(self, worker: str, marks: Marks, cached_tokens: int, block_tokens: int) -> None:
        """An answer said how much of its prompt `worker` had: what lies beyond was not there."""
        engine = self._engines.get(worker)
        if engine is None:
            return
        for at in range(engine.depth(marks.keys) - 1, -1, -1):
            key = marks.keys[at]
            node = engine.nodes.get(key)
            if node is None or node.children or node.tokens <= cached_tokens + block_tokens:
                return
            engine.take(key)
            self._forget(key, worker)

    def drop(self, worker: str) -> None:
        """`worker` is gone, or has started anew."""
        engine = self._engines.pop(worker, None)
        if engine is not None:
            for key in engine.nodes:
                self._forget(key, worker)

    def held_tokens(self, worker: str, marks: Marks) -> int:
        """Of a prompt with these marks, how many tokens `worker` should hold."""
        engine = self._engines.get(worker)
        if engine is None or not marks.keys:
            return 0
        depth = engine.depth(marks.keys)
        return engine.nodes[marks.keys[depth - 1]].tokens if depth else 0

    def holders(self, marks: Marks) -> list[str]:
        """A few engines that hold the most of a prompt."""
        keys, holders = marks.keys, self._holders
        at, step, found = _deepest(keys, holders.__contains__) - 1, 1, dict[str, None]()
        while at >= 0 and len(found) < HOLDERS:
            found.update(dict.fromkeys(islice(holders.get(keys[at], ()), HOLDERS)))
            at, step = at - step, 2 * step
        return list(islice(found, HOLDERS))

    def _forget(self, key: int, worker: str) -> None:
        self._count -= 1
        holders = self._holders[key]
        del holders[worker]
        if not holders:
            del self._holders[key]


class Held:
    """What the engines hold of one prompt."""

    __slots__ = ("_index", "_marks")

    def __init__(self, index: PrefixIndex, marks: Marks) -> None:
        self._index = index
        self._marks = marks

    def tokens(self, worker: str) -> int:
        return self._index.held_tokens(worker, self._marks)

    def holders(self) -> list[str]:
        return self._index.holders(self._marks)


UNKNOWN = Held(PrefixIndex(0), NOTHING)


def _deepest(keys: Sequence[int], known: Callable[[int], bool]) -> int:
    """How many keys of the chain lie before the end of the deepest known one.

    Those at the end are tried one by one, since a chat's next turn differs there; before them, what holds a
    key holds all before it.
    """
    n = len(keys)
    for at in range(n - 1, max(-1, n - 1 - _NEAR), -1):
        if known(keys[at]):
            return at + 1
    low, high = 0, max(0, n - _NEAR)
    while low < high:
        middle = (low + high) // 2
        if known(keys[middle]):
            low = middle + 1
        else:
            high = middle
    return low
