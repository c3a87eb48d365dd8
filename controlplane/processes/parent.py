"""`--processes N`: N processes share one port, counters, metrics and recent turns.

The parent holds a socket for each child, on which the child listens as soon as it can serve. Connections
that arrive while a child is being replaced wait for the new one, unless it keeps failing. The parent itself
serves nothing.
"""

import contextlib
import logging
import mmap
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from controlplane.admission import quotas
from controlplane.http import server
from controlplane.settings import FrontendSettings
from controlplane.shared import siblings

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)
_HEALTHY_AFTER_S = 30.0
_PATIENT_S = 1.0  # how long connections wait for a process that is starting
_GRACE_S = 10.0  # beyond the children's own deadline for running streams


class Sibling(NamedTuple):
    """What one of the processes is given."""

    number: int
    listener: socket.socket
    memory: mmap.mmap  # of the counters that all share
    turns: mmap.mmap | None = None  # of what they show of each other; None where there is one
    parent_pipe: int = -1  # readable once the parent is gone; -1 where there is none


class _Child:
    """One slot, filled by one process after another."""

    def __init__(self, number: int, listener: socket.socket) -> None:
        self.number = number
        self.listener = listener
        self.pid = 0
        self.started_s = 0.0
        self.failures = 0
        self.again_s = 0.0  # when to start it; 0 = it runs


def supervise(settings: FrontendSettings, run: Callable[[Sibling], int], log: logging.Logger) -> int:
    """Serve in as many processes as the settings say, until SIGTERM or SIGINT. Raises OSError (the port)."""
    memory = quotas.shared_memory(settings.processes)
    if settings.processes == 1:
        return run(Sibling(0, server.bind(settings.host, settings.port), memory))
    listeners = _listeners(settings)
    settings.port = listeners[0].getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ppd-metrics-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before prometheus_client is imported
    try:
        return _Parent(settings, run, memory, listeners, log).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _listeners(settings: FrontendSettings) -> list[socket.socket]:
    """One socket for each process on the same port, which no other program listens on. Raises OSError."""
    with server.bind(settings.host, settings.port) as probe:
        port = probe.getsockname()[1]
    return [server.bind(settings.host, port, shared=True) for _ in range(settings.processes)]


class _Parent:
    def __init__(
        self,
        settings: FrontendSettings,
        run: Callable[[Sibling], int],
        memory: mmap.mmap,
        listeners: list[socket.socket],
        log: logging.Logger,
    ) -> None:
        self._settings = settings
        self._run = run
        self._memory = memory
        self._turns = siblings.shared_memory(settings.processes)
        self._log = log
        self._children = [_Child(number, listener) for number, listener in enumerate(listeners)]
        self._pipe = os.pipe()  # never written to: its end tells children that the parent is gone

    def serve(self) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for child in self._children:
            self._start(child)
        while True:
            got = signal.sigtimedwait(_SIGNALS, 0.5)
            if got is not None and got.si_signo in (signal.SIGTERM, signal.SIGINT):
                return self._stop()
            if got is not None and got.si_signo == signal.SIGHUP:
                self._tell(signal.SIGHUP)
            self._reap()
            now_s = time.monotonic()
            for child in self._children:
                if child.again_s and now_s >= child.again_s:
                    self._start(child)

    def _start(self, child: _Child) -> None:
        child.again_s, child.started_s = 0.0, time.monotonic()
        child.pid = os.fork()
        if child.pid:
            return
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            # It has not read its keys yet, so there is nothing to read again.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(self._pipe[1])
            for other in self._children:
                if other is not child:
                    other.listener.close()
            shared = (self._memory, self._turns)
            status = self._run(Sibling(child.number, child.listener, *shared, self._pipe[0]))
        except BaseException:
            self._log.exception("process %d", child.number)
        finally:
            os._exit(status)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for child in self._children:
                    if child.pid == ended[0]:
                        self._ended(child, os.waitstatus_to_exitcode(ended[1]))

    def _ended(self, child: _Child, status: int) -> None:
        from prometheus_client import multiprocess  # here: its folder is set by now

        now_s = time.monotonic()
        if now_s - child.started_s > _HEALTHY_AFTER_S:
            child.failures = 0
        wait_s = _BACKOFF_S[min(child.failures, len(_BACKOFF_S) - 1)]
        child.failures += 1
        self._log.error("process %d ended (%d); another starts in %g s", child.number, status, wait_s)
        multiprocess.mark_process_dead(child.pid)  # type: ignore[no-untyped-call]
        child.pid, child.again_s = 0, now_s + wait_s
        if wait_s > _PATIENT_S and child.listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            # This may take long: until the child is replaced the healthy ones take all connections.
            child.listener.shutdown(socket.SHUT_RDWR)

    def _tell(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, number)

    def _stop(self) -> int:
        """Let running streams end; a second signal, or the deadline, ends them at once."""
        for child in self._children:
            child.listener.close()
        self._tell(signal.SIGTERM)
        until_s = time.monotonic() + self._settings.shutdown_s + _GRACE_S
        while any(child.pid for child in self._children):
            left_s = until_s - time.monotonic()
            got = signal.sigtimedwait(_SIGNALS, max(0.0, min(0.5, left_s)))
            if left_s <= 0 or (got is not None and got.si_signo in (signal.SIGTERM, signal.SIGINT)):
                self._tell(signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while ended := os.waitpid(-1, os.WNOHANG)[0]:
                    for child in self._children:
                        child.pid = 0 if child.pid == ended else child.pid
        return 0
