"""Other programs, each run to its end within a deadline."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ProgramError(Exception):
    """The program could not be started or did not end in time; the message names it and the cause."""


class Done(NamedTuple):
    status: int  # below 0: ended by this signal
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """Of what it wrote, errors first: the line that usually names the cause."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.status}"


async def run(argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None) -> Done:
    """Run a program with no input. Its whole process group is killed at the deadline, or when the caller is
    cancelled. `env`: in place of this process's environment. Raises ProgramError.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise ProgramError(f"{argv[0]}: {error.strerror}") from error
    try:
        out, err = await asyncio.wait_for(process.communicate(), deadline_s)
    except TimeoutError:
        raise ProgramError(f"{argv[0]} did not end within {deadline_s:g} s") from None
    finally:
        if process.returncode is None:
            kill_group(process)
    return Done(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill what a process started with `start_new_session` left running, and itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
