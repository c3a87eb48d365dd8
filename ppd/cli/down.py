"""`ppd down`: stop the stack of this folder, and return when nothing of it is left."""

import os
import signal
import sys
import time

from ppd.cli import paths
from ppd.cli.stack import leftovers
from ppd.cli.stack.state import Lock, StackState, StateFile, alive
from ppd.runtime.settings import CommandSettings, load

_WITHIN_S = 150.0  # workers may take a minute to let their streams end
_SAID_WITHIN_S = 60.0  # from `ppd up` to the supervisor's first word, on a machine that is busy


class DownSettings(CommandSettings):
    """Stop the stack of this folder: frontend, workers, planner, NATS, etcd; return when all are gone."""


def _find(file: StateFile, lock: Lock) -> StackState | None:
    """The stack that runs, that begins to, or that was left. Raises TimeoutError where one does not say who
    it is."""
    until_s = time.monotonic() + _SAID_WITHIN_S
    while True:
        begins = lock.taken()  # asked before the state is read: what holds it may write that in between
        state = file.read()
        if not begins or (state is not None and alive(state.supervisor)):
            return state
        if time.monotonic() > until_s:
            raise TimeoutError
        time.sleep(0.05)


def _stop(state: StackState) -> None:
    until_s = time.monotonic() + _WITHIN_S
    try:
        if alive(state.supervisor):
            os.kill(state.supervisor.pid, signal.SIGTERM)
        while alive(state.supervisor) and time.monotonic() < until_s:
            time.sleep(0.1)
        if alive(state.supervisor):
            print("ppd down: the supervisor does not end; killing the stack", file=sys.stderr)
            os.kill(state.supervisor.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself in between
    for stack_id in (state.stack_id, *state.predecessors):
        leftovers.sweep(stack_id, grace_s=10)


def main(argv: list[str]) -> int:
    load(DownSettings, argv, "ppd down")
    file, lock = StateFile(paths.home()), Lock(paths.home())
    try:
        state = _find(file, lock)
    except TimeoutError:
        print(f"ppd down: a process holds {lock.path} and does not say what it starts", file=sys.stderr)
        return 1
    if state is None:
        print("no stack runs here")
        return 0
    _stop(state)
    left = file.read()
    if left is not None and left.supervisor.pid == state.supervisor.pid:
        file.remove()
    print(f"stopped {state.placement} at {state.endpoint}" if state.endpoint else "stopped")
    return 0
