"""One engine as a process group of its own, that never outlives its agent."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_KILL_AFTER_S = 5.0  # from SIGTERM to SIGKILL
_TAIL_BYTES = 65_536
# Blocks until the agent's end of the pipe closes, be it by `kill -9`, then ends the engine's whole group.
_LEASH = 'read -r _; kill -s KILL -- "-$0" 2>/dev/null'


class EngineProcess:
    """vLLM's API server and the processes that it starts."""

    def __init__(
        self, process: asyncio.subprocess.Process, leash: asyncio.subprocess.Process, log: Path | None
    ) -> None:
        self._process = process
        self._leash = leash
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self, now: bool = False) -> None:
        """End the whole group: SIGTERM, and SIGKILL for what is left after 5 s, or at once if `now`.

        Cancelled while it waits, it does not wait any longer.
        """
        try:
            if not now and self._process.returncode is None:
                self._signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _KILL_AFTER_S)
        finally:
            self._signal(signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                self._leash.kill()
        await self._process.wait()
        await self._leash.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def last_lines(self, count: int = 15) -> str:
        """The end of the engine's log, errors first: what a person wants to see when it died."""
        return tail(self._log, count) if self._log else "(they are above, in this log)"


async def start_engine(
    argv: list[str], env: Mapping[str, str], log: Path | None, cores: set[int] | None = None
) -> EngineProcess:
    """Start an engine whose output goes to `log`; that of the engine before it is kept as `*.1`.

    Without a `log` it goes to this process' own standard output. Raises OSError if it cannot be started.
    """
    with _fresh(log) if log else contextlib.nullcontext() as output:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    if cores:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, cores)  # inherited by all that it starts
    leash = await asyncio.create_subprocess_exec(
        "sh", "-c", _LEASH, str(process.pid), stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    return EngineProcess(process, leash, log)


def _fresh(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))
    return log.open("wb")


def tail(log: Path, count: int) -> str:
    """The last `count` lines of `log`, and before them the last that name an error, each error once: vLLM's
    processes report one cause one after the other."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    errors: dict[str, str] = {}
    for line in lines[:-count]:
        if found := re.search(r"\b\w*(Error|Exception)\b: .*", line):
            errors.setdefault(found[0], line)
    return "\n".join([*errors.values()][-5:] + lines[-count:]) or "(its log is empty)"
