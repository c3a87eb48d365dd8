"""Finding and ending every process of a stack, whoever its parent is by now.

All of them carry the stack's id in their environment, which children inherit: so nothing is missed that an
agent started, and nobody else's process is touched, recycled pid or not.
"""

import time

import psutil

STACK_ENV = "PPD_STACK"
MEMBER_ENV = "PPD_STACK_MEMBER"


def find(stack_id: str, member: str | None = None) -> list[psutil.Process]:
    """The living processes of a stack, or of one of its members; this process is never among them."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            dead = process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if dead or environment.get(STACK_ENV) != stack_id or process == psutil.Process():
            continue
        if member is None or environment.get(MEMBER_ENV) == member:
            found.append(process)
    return found


def sweep(stack_id: str, member: str | None = None, grace_s: float = 0.0) -> int:
    """End them: SIGTERM where there is a grace, then SIGKILL. How many there were; blocks until gone."""
    found = find(stack_id, member)
    if found and grace_s:
        _each(found, "terminate")
        psutil.wait_procs(found, timeout=grace_s)
    count = len(found)
    until_s = time.monotonic() + 10
    while (left := find(stack_id, member)) and time.monotonic() < until_s:
        _each(left, "kill")
        psutil.wait_procs(left, timeout=1)
    return count


def _each(processes: list[psutil.Process], verb: str) -> None:
    for process in processes:
        try:
            getattr(process, verb)()
        except psutil.Error:
            continue
