"""What is written down about a running stack, and the lock that says that it runs."""

import fcntl
import os
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil

_SAME_START_S = 1.0  # a start time is a sum of two clocks that the kernel rounds


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
    """Held by the supervisor for as long as it lives; the kernel lets go of it when the supervisor dies."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._fd: int | None = None

    def take(self) -> bool:
        """Whether it could be had."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
