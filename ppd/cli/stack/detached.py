"""A stack in the background: the supervisor as a process of its own, and the terminal that waits for it."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from ppd.cli.stack import plan, stack
from ppd.cli.stack.process import last_lines
from ppd.cli.stack.progress import PipeProgress, Progress, replay
from ppd.cli.stack.summary import summary


def start(spec: plan.Spec, folder: Path, progress: Progress) -> int:
    """Start the supervisor and show how it gets on. 0 once the stack serves; else its exit status, and
    everything is stopped again. Ctrl-C stops it too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "supervisor.log"
    read_fd, write_fd = os.pipe()
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "ppd.cli.stack.detached", str(folder), str(write_fd)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[write_fd],
            start_new_session=True,
        )
    os.close(write_fd)
    if supervisor.stdin:
        supervisor.stdin.write(msgspec.json.encode(spec))
        supervisor.stdin.close()
    previous = signal.signal(signal.SIGINT, lambda *_: supervisor.send_signal(signal.SIGINT))
    try:
        with os.fdopen(read_fd) as events:
            for line in events:
                if replay(line, progress) == "ready":
                    return 0
        status = supervisor.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
        progress.close()
    if status < 0 or status not in (1, 130):
        print("\n".join(["ppd up: the supervisor failed", *last_lines(log, 15)]), file=sys.stderr)
    return status if status > 0 else 1


def main() -> int:
    """The supervisor's process: `python -m ppd.cli.stack.detached FOLDER FD`, the spec on standard input."""
    folder, fd = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(fd, False)
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=plan.Spec)
    progress = PipeProgress(fd, sys.stdout)
    about = functools.partial(summary, in_background=True)
    try:
        return asyncio.run(stack.Stack(spec, folder, progress, about).run())
    except stack.BusyError as error:
        progress.say(f"ppd up: {error}")
        return 1
    finally:
        progress.close()


if __name__ == "__main__":
    sys.exit(main())
