"""Waiting for a condition; the deadline only keeps a failed test from hanging."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], within_s: float = 20) -> float:
    """Wait for `condition()`; the seconds it took."""
    started_s = time.monotonic()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return time.monotonic() - started_s
