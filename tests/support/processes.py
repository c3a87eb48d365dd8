"""Questions and signals to processes that may end at any moment."""

import contextlib
import signal
from collections.abc import Iterable

import psutil


def commands(processes: Iterable[psutil.Process]) -> dict[int, list[str]]:
    """The command lines of those that still run, by pid."""
    found: dict[int, list[str]] = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = process.cmdline()
    return found


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """To those that still run."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
