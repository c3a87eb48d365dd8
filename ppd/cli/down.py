"""`ppd down`: stop the stack of this folder, and return when nothing of it is left."""

import os
import signal
import sys
import time

from ppd.cli import paths
from ppd.cli.stack import leftovers
from ppd.cli.stack.state import StateFile, alive
from ppd.runtime.settings import CommandSettings, load

_WITHIN_S = 150.0  # workers may take a minute to let their streams end


class DownSettings(CommandSettings):
    """Stop the stack of this folder: frontend, workers, planner, NATS, etcd; return when all are gone."""


def main(argv: list[str]) -> int:
    load(DownSettings, argv, "ppd down")
    file = StateFile(paths.home())
    state = file.read()
    if state is None:
        print("no stack runs here")
        return 0
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
    leftovers.sweep(state.stack_id, grace_s=10)
    file.remove()
    print(f"stopped {state.placement} at {state.endpoint}" if state.endpoint else "stopped")
    return 0
