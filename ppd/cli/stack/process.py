"""One process of the stack: started in a group of its own with a log file, and stopped for certain."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from ppd.cli.stack import leftovers
from ppd.runtime import otlp

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """Runs in the child: the kernel sends it SIGTERM when the supervisor dies, even by `kill -9`."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _environment(name: str, stack_id: str) -> dict[str, str]:
    marks = {leftovers.STACK_ENV: stack_id, leftovers.MEMBER_ENV: name, "PYTHONUNBUFFERED": "1"}
    # etcd takes every flag from ETCD_... too: what the user has there is meant for another etcd.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
    return {**otlp.for_all_parts(inherited), **marks}


def describe_end(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exited with status {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class Process:
    """One start of one member of the stack."""

    def __init__(self, name: str, stack_id: str, inner: asyncio.subprocess.Process) -> None:
        self._name = name
        self._stack_id = stack_id
        self._inner = inner
        self.pid = inner.pid
        self.began_s = time.monotonic()
        self.started_unix_s = _create_time(inner.pid)

    @classmethod
    async def spawn(cls, name: str, argv: Sequence[str], stack_id: str, log: Path) -> "Process":
        """Start `argv`, its output appended to `log`; OSError if it cannot be run at all."""
        with log.open("ab") as output:
            inner = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(name, stack_id),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        return cls(name, stack_id, inner)

    @property
    def running(self) -> bool:
        return self._inner.returncode is None

    async def wait(self) -> int:
        """The exit status, negative for a signal."""
        return await self._inner.wait()

    async def stop(self, within_s: float, hurry: asyncio.Event) -> None:
        """SIGTERM, and SIGKILL to all that is left of it after `within_s`, or as soon as `hurry` is set."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._inner.terminate()
            ended, hurried = asyncio.ensure_future(self.wait()), asyncio.ensure_future(hurry.wait())
            await asyncio.wait({ended, hurried}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            hurried.cancel()
        await self.clear()

    async def clear(self) -> int:
        """Kill what is left of this member, its children included; how many there were."""
        return await asyncio.to_thread(leftovers.sweep, self._stack_id, self._name)


def _create_time(pid: int) -> float:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return time.time()


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log, without escape sequences' control characters; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = ["".join(c for c in line if c.isprintable()).rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-count:]
