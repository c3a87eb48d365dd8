"""A stack in the background: the supervisor as a process of its own, and the terminal that waits for it."""

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from ppd.cli.stack import stack
from ppd.cli.stack.process import last_lines
from ppd.cli.stack.progress import PipeProgress, Progress, replay
from ppd.cli.stack.spec import Spec
from ppd.cli.stack.state import Lock, StateFile, busy
from ppd.cli.stack.summary import summary


def start(spec: Spec, folder: Path, progress: Progress, lock: Lock) -> int:
    """Start the supervisor, to which the lock goes, and show how it gets on. 0 once the stack serves; else
    its exit status, and everything is stopped again. Ctrl-C stops it too.
    """
    if not lock.take() or lock.fd is None:
        raise busy(StateFile(folder).read())
    log = folder / "supervisor.log"
    read_fd, write_fd = os.pipe()
    with log.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "ppd.cli.stack.detached", str(folder), str(write_fd), str(lock.fd)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[write_fd, lock.fd],
            start_new_session=True,
        )
    os.close(write_fd)
    lock.release()
    previous = signal.signal(signal.SIGINT, lambda *_: supervisor.send_signal(signal.SIGINT))
    try:
        if supervisor.stdin:
            with contextlib.suppress(BrokenPipeError):  # it was told to stop already
                supervisor.stdin.write(msgspec.json.encode(spec))
                supervisor.stdin.close()
        with os.fdopen(read_fd) as events:
            for line in events:
                if replay(line, progress) == "ready":
                    return 0
        status = supervisor.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
        progress.close()
    if status in (-signal.SIGTERM, -signal.SIGINT):  # before it could take them for a word to itself
        print("ppd up: told to stop before it began", file=sys.stderr)
        return 130
    if status < 0 or status not in (1, 130):
        print("\n".join(["ppd up: the supervisor failed", *last_lines(log, 15)]), file=sys.stderr)
    return status if status > 0 else 1


def main() -> int:
    """The supervisor's process: `python -m ppd.cli.stack.detached FOLDER PIPE LOCK`, the latter two file
    descriptors, and the spec on standard input."""
    folder, fd, lock = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for inherited in (fd, lock):
        os.set_inheritable(inherited, False)
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    progress = PipeProgress(fd, sys.stdout)
    about = functools.partial(summary, in_background=True)
    try:
        return asyncio.run(stack.Stack(spec, folder, progress, about, Lock(folder, lock)).run())
    finally:
        progress.close()


if __name__ == "__main__":
    sys.exit(main())
