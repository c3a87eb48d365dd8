"""What each API key uses: its requests in the last minute and those running, over all processes.

Each process writes its own counters and reads those of all, so that no lock is needed. Requests that arrive
at several processes in the same instant may exceed a limit by as many.
"""

import math
import mmap

from controlplane.errors import ApiError
from ppd.runtime.keys import MAX_KEYS, ApiKey

_WINDOW_S = 60.0
_WINDOW, _NOW, _BEFORE, _RUNNING = range(4)  # the counters of one key in one process
_COUNTERS = 4


def shared_memory(processes: int) -> mmap.mmap:
    """For a Quota in each of `processes` processes, which must be forked after this."""
    return mmap.mmap(-1, MAX_KEYS * processes * _COUNTERS * 8)


class Quota:
    """Counts, and refuses what goes beyond a key's limits."""

    def __init__(self, memory: mmap.mmap, processes: int = 1, own: int = 0) -> None:
        self._cells = memoryview(memory).cast("q")
        self._processes = processes
        self._own = own
        for key in range(MAX_KEYS):  # of a process that was here before and died
            self._cells[self._at(key + 1, own) + _RUNNING] = 0

    def _at(self, key_id: int, process: int) -> int:
        return ((key_id - 1) * self._processes + process) * _COUNTERS

    def enter(self, key: ApiKey, now_s: float) -> None:
        """One more request; `leave` must follow. Raises ApiError (429)."""
        starts = [self._at(key.id, process) for process in range(self._processes)]
        if key.max_concurrent and sum(self._cells[at + _RUNNING] for at in starts) >= key.max_concurrent:
            raise _too_many(
                "concurrency_limit_exceeded",
                f"at most {key.max_concurrent} requests at once with this key",
                1,
            )
        if key.requests_per_min:
            self._check_rate(key, starts, now_s)
        own = self._at(key.id, self._own)
        self._roll(own, int(now_s // _WINDOW_S))
        self._cells[own + _NOW] += 1
        self._cells[own + _RUNNING] += 1

    def leave(self, key: ApiKey) -> None:
        self._cells[self._at(key.id, self._own) + _RUNNING] -= 1

    def _check_rate(self, key: ApiKey, starts: list[int], now_s: float) -> None:
        """The last 60 seconds are the current window and the part of the previous one that they overlap."""
        window, passed = divmod(now_s / _WINDOW_S, 1.0)
        now = before = 0
        for at in starts:
            age = int(window) - self._cells[at + _WINDOW]
            if age == 0:
                now, before = now + self._cells[at + _NOW], before + self._cells[at + _BEFORE]
            elif age == 1:
                before += self._cells[at + _NOW]
        limit = key.requests_per_min
        if now + before * (1 - passed) + 1 <= limit:
            return
        # Fraction of the window that must pass until the sum is low enough; 1 or more: in the next window.
        free = 1 - (limit - 1 - now) / before if now < limit and before else 2 - (limit - 1) / now
        wait_s = max(1, math.ceil((free - passed) * _WINDOW_S))
        raise _too_many("rate_limit_exceeded", f"this key allows {limit} requests a minute", wait_s)

    def _roll(self, at: int, window: int) -> None:
        age = window - self._cells[at + _WINDOW]
        if age:
            self._cells[at + _BEFORE] = self._cells[at + _NOW] if age == 1 else 0
            self._cells[at + _NOW] = 0
            self._cells[at + _WINDOW] = window


def _too_many(code: str, message: str, retry_after_s: int) -> ApiError:
    return ApiError(429, message, code=code, retry_after_s=retry_after_s)
