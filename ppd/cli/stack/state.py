"""What is written down about a running stack, and the lock that says that it runs."""

import fcntl
import os
import time
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil

_SAME_START_S = 1.0  # a start time is a sum of two clocks that the kernel rounds
_LOCK_WITHIN_S = 0.3  # who only asks about the lock has it for a moment


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


class MemberState(msgspec.Struct, kw_only=True):
    """One process of the stack. The start time tells it from another process with a recycled pid."""

    name: str
    pid: int = 0
    started_unix_s: float = 0.0
    phase: Phase = Phase.STARTING
    restarts: int = 0
    log: str = ""


class StackState(msgspec.Struct, kw_only=True):
    stack_id: str  # in the environment of every process of the stack
    supervisor: MemberState
    phase: Phase = Phase.STARTING
    placement: str = ""
    model: str = ""
    endpoint: str = ""
    namespace: str = "default"
    etcd: str = ""
    nats: str = ""
    log_dir: str = ""
    members: list[MemberState] = []
    predecessors: list[str] = []  # stacks whose supervisor was killed, and whose processes may still live


def alive(member: MemberState) -> bool:
    """Whether that very process still runs (not one that got its pid since, and no zombie)."""
    try:
        process = psutil.Process(member.pid)
        same: bool = abs(process.create_time() - member.started_unix_s) < _SAME_START_S
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, ValueError):
        return False


class StateFile:
    """`state.json` in the stack's folder. Only the supervisor, which holds the lock, writes it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.json"

    def read(self) -> StackState | None:
        """The state last written; None if there is none, or none that can be read."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=StackState)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, state: StackState) -> None:
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
        new.replace(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class Lock:
    """Taken by `ppd up` before anything else, and held by the supervisor for as long as it lives; the kernel
    lets go of it when the last process that has it dies. So a stack that begins to start is seen before it
    can say anything of itself."""

    def __init__(self, folder: Path, fd: int | None = None) -> None:
        """`fd`: of a lock that was inherited."""
        self.path = folder / "lock"
        self.fd = fd

    def take(self) -> bool:
        """Whether it could be had."""
        if self.fd is not None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        until_s = time.monotonic() + _LOCK_WITHIN_S
        while not _flock(fd, fcntl.LOCK_EX):
            if time.monotonic() > until_s:
                os.close(fd)
                return False
            time.sleep(0.02)
        self.fd = fd
        return True

    def taken(self) -> bool:
        """Whether another process holds it."""
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            return not _flock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    def release(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class BusyError(RuntimeError):
    """A stack runs in this folder already; the message says how to reach it."""


def busy(state: StackState | None) -> BusyError:
    where = f": {state.endpoint} ({state.placement}, {state.phase})" if state else ""
    return BusyError(f"a stack runs here already{where}; `ppd status` shows it, `ppd down` stops it")


def running(folder: Path) -> StackState | None:
    """The stack whose supervisor lives in `folder`, if there is one."""
    state = StateFile(folder).read()
    return state if state is not None and alive(state.supervisor) else None
