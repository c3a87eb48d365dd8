"""What this frontend learned by asking an engine itself.

An engine that was streaming and falls silent is asked for its step counter. A hung engine is noticed sooner
than by its agent's reports, and without NATS.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from controlplane.engines.connection import UpstreamError
from controlplane.engines.deadline import deadline
from controlplane.engines.pool import Pool

_FRESH_S = 5.0  # an older answer is ignored
_STEPS = re.compile(rb"^vllm:iteration_tokens_total_count(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)
_MAX_PAGE_BYTES = 4 << 20
_PAGE = b"/metrics"


class Evidence:
    """One engine's answers to the question whether it makes steps. Times are of a monotonic clock."""

    def __init__(self) -> None:
        self.unanswered = False  # the last question got no answer in time
        self.asking: asyncio.Task[None] | None = None
        self.asked_s = -inf
        self._answered_s = -inf
        self._stepped_s = -inf  # when the counter was last seen to have moved
        self._steps = -1.0

    def answered(self, steps: float | None, now_s: float) -> None:
        """`steps`: the engine's counter; None where it has none, so that only the answer itself counts."""
        self.unanswered, self._answered_s = False, now_s
        if steps is None or steps != self._steps:
            self._stepped_s, self._steps = now_s, -1.0 if steps is None else steps

    def works(self, now_s: float, stuck_s: float) -> bool:
        fresh = now_s - self._answered_s <= _FRESH_S
        return fresh and not self.unanswered and now_s - self._stepped_s < stuck_s

    def stuck_s(self, now_s: float) -> float:
        """How long it has answered without making a step; 0: not known."""
        return now_s - self._stepped_s if now_s - self._answered_s <= _FRESH_S else 0.0

    def cleared(self) -> None:
        """A byte came from the engine: it is not hung."""
        self.unanswered = False


Ask = Callable[[Pool, Evidence, float], Coroutine[Any, Any, None]]


async def ask(pool: Pool, evidence: Evidence, within_s: float) -> None:
    """Ask an engine for its step counter. An engine that refuses the connection does not hang, it is gone:
    the registry and its connections show that.
    """
    loop = asyncio.get_running_loop()
    try:
        async with deadline(within_s):
            page = await pool.get(_PAGE, within_s, _MAX_PAGE_BYTES)
    except TimeoutError:
        evidence.unanswered = True
    except UpstreamError as error:
        evidence.unanswered = error.kind in ("connect-timeout", "first-byte-timeout", "idle-timeout")
    else:
        found = _STEPS.search(page)
        evidence.answered(float(found.group(1)) if found else None, loop.time())
