"""A stack started by `ppd up` in a folder of its own, as a user would start it."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.support.servers import free_port

ADMIN_KEY = "e2e-admin-key"
_MARK = "PPD_E2E"  # in the environment of every process that one LocalStack starts


def eventually(what: Callable[[], Any], within_s: float = 120) -> Any:
    """Ask until the answer is true, and return it; the bound is against hanging, not a measurement."""
    until_s = time.monotonic() + within_s
    while not (answer := what()):
        assert time.monotonic() < until_s, f"waited {within_s:.0f} s in vain"
        time.sleep(0.2)
    return answer


@contextlib.contextmanager
def engines_to_ourselves() -> Iterator[None]:
    """Where PPD_TEST_LOCK names a file: hold its lock, so that two test runs do not share the cores."""
    path = os.environ.get("PPD_TEST_LOCK")
    if not path:
        yield
        return
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class LocalStack:
    """Not started by being made."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "PPD_HOME": str(home),
            "PPD_ADMIN_KEY": ADMIN_KEY,
            _MARK: self._mark,
            **environment,
        }

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "ppd.cli.main", *args]

    def ppd(self, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            self.command(*args),
            env=self.environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def up(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.ppd("up", "--port", str(self.port), "--detach", *args)

    def state(self) -> dict[str, Any]:
        return json.loads((self.home / "state.json").read_text())

    def pids(self) -> dict[str, int]:
        """Of each member, by name."""
        return {member["name"]: member["pid"] for member in self.state()["members"]}

    def status(self) -> dict[str, Any]:
        """What `ppd status --json` says; `parts` by name."""
        report = json.loads(self.ppd("status", "--json").stdout)
        report["parts"] = {part["name"]: part for part in report["parts"]}
        return report

    def processes(self) -> list[psutil.Process]:
        """Every living process that this stack's commands started, engines included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get(_MARK) == self._mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def nothing_is_left(self) -> bool:
        return not self.processes() and not (self.home / "state.json").exists()
