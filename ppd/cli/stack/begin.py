"""What `ppd up` does once its flags are known to be right and the folder's lock is held.

It imports all that a stack needs, which takes a second or two.
"""

import asyncio
from pathlib import Path

from ppd.cli.stack import detached, plan, stack
from ppd.cli.stack.progress import for_terminal
from ppd.cli.stack.spec import Spec
from ppd.cli.stack.state import Lock
from ppd.cli.stack.summary import summary


def run(spec: Spec, folder: Path, lock: Lock, detach: bool) -> int:
    """The exit status. Raises PlanError where the stack could not start, and BusyError."""
    plan.check(spec)
    progress = for_terminal()
    if detach:
        return detached.start(spec, folder, progress, lock)
    return asyncio.run(stack.Stack(spec, folder, progress, summary, lock).run())
