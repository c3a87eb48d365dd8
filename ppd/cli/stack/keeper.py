"""Keeps one member of the stack running: starts it, waits until it serves, brings it back when it dies."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from ppd.cli.stack.plan import Member
from ppd.cli.stack.process import Process, describe_end, last_lines
from ppd.cli.stack.progress import Progress
from ppd.cli.stack.state import MemberState, Phase
from ppd.runtime.tasks import backoff_s

_POLL_S = 0.25
_HEALTHY_AFTER_S = 30.0


class StartError(RuntimeError):
    """A part of the stack did not start; the message has the end of its log."""


def with_log(text: str, logs: list[Path]) -> str:
    """`text`, followed by the last lines of each log that has any."""
    parts = [text]
    for log in logs:
        if lines := last_lines(log, 15):
            parts += [f"  the end of {log}:", *(f"  | {line[:200]}" for line in lines)]
    return "\n".join(parts)


class Keeper:
    """One member over all its starts. `state` is what is written down about it."""

    def __init__(
        self, member: Member, stack_id: str, logs: Path, progress: Progress, changed: Callable[[], None]
    ) -> None:
        self.member = member
        self.log = logs / f"{member.name}.log"
        self.state = MemberState(name=member.name, log=str(self.log))
        self._engine_log = logs / f"{member.name}.engine.log"
        self._stack_id = stack_id
        self._progress = progress
        self._changed = changed
        self._process: Process | None = None

    def _set(self, phase: Phase) -> None:
        self.state.phase = phase
        self._changed()

    async def _spawn(self, phase: Phase) -> Process:
        self._process = process = await Process.spawn(
            self.member.name, self.member.argv, self._stack_id, self.log
        )
        self.state.pid, self.state.started_unix_s = process.pid, process.started_unix_s
        self._set(phase)
        return process

    async def _until_ready(self, process: Process) -> None:
        """Returns when it serves; the state says so."""
        while not await self.member.ready(process.started_unix_s):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        self._set(Phase.READY)

    async def start(self, within_s: float) -> None:
        """The first start. Raises StartError if the process ends, or does not serve in time."""
        name, ok, why = self.member.name, False, "interrupted"
        self._progress.begin(name, self.member.waits_for)
        try:
            process = await self._spawn(Phase.STARTING)
            why = await self._first_failure(process, within_s)
            ok = not why
        except OSError as error:
            why = f"cannot be started: {error}"
        finally:
            self._progress.end(name, ok, why)
        if not ok:
            raise StartError(with_log(f"{name} {why}", [self.log, self._engine_log]))

    async def _first_failure(self, process: Process, within_s: float) -> str:
        """Why it does not serve; empty once it does."""
        ready = asyncio.create_task(self._until_ready(process))
        ended = asyncio.create_task(process.wait())
        until_s = time.monotonic() + within_s
        try:
            while not ready.done() and not ended.done():
                if time.monotonic() > until_s:
                    return f"does not serve after {within_s:.0f} s"
                await asyncio.wait({ready, ended}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
                self._progress.note(self.member.name, (last_lines(self._newest_log(), 1) or [""])[0])
            if ended.done():
                return describe_end(ended.result())
            await ready
            return ""
        finally:
            ready.cancel()
            ended.cancel()

    def _newest_log(self) -> Path:
        """The engine's log once it has one: an agent says little while its engine loads."""
        return self._engine_log if self._engine_log.exists() else self.log

    async def keep(self) -> None:
        """For ever: when the process dies it is started again, alone, after a back-off."""
        waits = backoff_s()
        process = self._process
        while True:
            if process is not None:
                code = await process.wait()
                if time.monotonic() - process.began_s > _HEALTHY_AFTER_S:
                    waits = backoff_s()
                await process.clear()
                self.state.restarts += 1
                self._set(Phase.RESTARTING)
                self._progress.say(f"{self.member.name} {describe_end(code)}; starting it again")
            await asyncio.sleep(next(waits))
            try:
                process = await self._spawn(Phase.RESTARTING)
            except OSError as error:
                self._progress.say(f"{self.member.name} cannot be started: {error}")
                process = None
                continue
            await self._serve_or_end(process)

    async def _serve_or_end(self, process: Process) -> None:
        ready = asyncio.create_task(self._until_ready(process))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not ended.done():
                await ready
                self._progress.say(
                    f"{self.member.name} is back after {time.monotonic() - process.began_s:.1f} s"
                )
        finally:
            ready.cancel()
            ended.cancel()

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop it in its own time; what is left of it afterwards is killed. Nothing may be keeping it."""
        self._set(Phase.STOPPING)
        if self._process is not None:
            await self._process.stop(self.member.stop_within_s, hurry)
        self._set(Phase.STOPPED)
