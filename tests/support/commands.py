"""`ppd` commands as processes of their own."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_HANG_S = 60.0


class Running:
    """A service, with its output in `log`."""

    def __init__(self, argv: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command(*argv), stdout=file, stderr=file, env=env)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def says(self, text: str) -> None:
        """Wait until `text` is in its output."""
        until_s = time.monotonic() + _HANG_S
        while text not in self.log:
            assert time.monotonic() < until_s, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.05)

    def end(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(_HANG_S)


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "ppd.cli.main", *argv]


def ran(*argv: str) -> subprocess.CompletedProcess[str]:
    """One command, run to its end."""
    return subprocess.run(
        command(*argv),
        capture_output=True,
        text=True,
        timeout=2 * _HANG_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
