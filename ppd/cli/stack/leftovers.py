"""Finding and ending every process of a stack, whoever its parent is by now.

All of them carry the stack's id in their environment, which children inherit: so nothing is missed that an
agent started, and nobody else's process is touched, recycled pid or not.
"""

import contextlib
import time

import psutil

STACK_ENV = "PPD_STACK"
MEMBER_ENV = "PPD_STACK_MEMBER"

_KILL_WITHIN_S = 10.0
_POLL_S = 0.05


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
    """End them: SIGTERM where there is a grace, then SIGKILL. How many there were; blocks until gone.

    None is waited for as a child, so that whoever started it still gets its exit status.
    """
    count = len(find(stack_id, member))
    if count and grace_s:
        _until_gone(stack_id, member, "terminate", grace_s, every_s=grace_s)
    _until_gone(stack_id, member, "kill", _KILL_WITHIN_S, every_s=1.0)
    return count


def _until_gone(stack_id: str, member: str | None, verb: str, within_s: float, every_s: float) -> None:
    """Send the signal at once and again every `every_s`, for processes that were started in between."""
    now_s = time.monotonic()
    until_s, send_s = now_s + within_s, now_s
    while (found := find(stack_id, member)) and (now_s := time.monotonic()) < until_s:
        if now_s >= send_s:
            send_s = now_s + every_s
            for process in found:
                with contextlib.suppress(psutil.Error):
                    getattr(process, verb)()
        time.sleep(_POLL_S)
