"""A request as an engine sees it, and what the engine says about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class RequestTooLargeError(ValueError):
    """The prompt and its answer cannot fit the engine's KV memory."""


class Where(Enum):
    """Where in the engine a request is."""

    NEW = "new"
    WAITING = "waiting"
    PULLING = "pulling"  # its blocks are allocated, their content is on its way
    RUNNING = "running"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Request:
    """One prompt and the number of tokens that its answer will have.

    `keys` names the content of each full block of prompt and answer: equal keys mean equal content and equal
    content before it, so `keys[:n]` in the cache is a prefix of `n` blocks.
    """

    request_id: str
    keys: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    pull_tokens: int = 0  # of the prompt, what another engine can send
    lease: bool = False  # keep the blocks after the end, for another engine to read

    # The engine's own.
    where: Where = field(default=Where.NEW, init=False)
    computed: int = field(default=0, init=False)  # tokens whose KV is there
    generated: int = field(default=0, init=False)
    cached_tokens: int = field(
        default=-1, init=False
    )  # of the prompt, found in this engine's cache; -1 = not yet seen
    pulled_tokens: int = field(default=0, init=False)
    blocks: int = field(default=0, init=False)  # held
    keyed: int = field(default=0, init=False)  # of those, full ones that others can find
    preemptions: int = field(default=0, init=False)
    arrived_s: float = field(default=0.0, init=False)
    first_token_s: float = field(default=0.0, init=False)
    last_token_s: float = field(default=0.0, init=False)
    aborted: bool = field(default=False, init=False)

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.prompt_tokens + self.generated


class EventKind(Enum):
    PULL = "pull"  # `Request.pulled_tokens` tokens are to be fetched; answer with `Engine.pulled`
    FIRST = "first"  # the answer's first token
    FINISHED = "finished"
    LEASE_EXPIRED = "lease-expired"  # nobody read the blocks in time


class Event(NamedTuple):
    kind: EventKind
    request: Request
    at_s: float
