"""The first run of `make`: what an interrupt leaves of it."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]

# Starts a child, as pip does for a build, and says its pid.
_COMMAND = "sleep 600 & echo $! > child; wait"


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_an_interrupted_step_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    step = subprocess.Popen(
        [ROOT / "scripts" / "step", "the label", "sh", "-c", _COMMAND],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    file = tmp_path / "child"
    while not (file.exists() and file.read_text().endswith("\n")):
        assert step.poll() is None
        time.sleep(0.02)
    child = int(file.read_text())
    os.killpg(step.pid, number)
    _, err = step.communicate(timeout=60)
    assert step.returncode == 130
    assert "the label  interrupted" in err
    until_s = time.monotonic() + 30
    while not _gone(child) and time.monotonic() < until_s:
        time.sleep(0.02)
    left = not _gone(child)
    if left:
        os.kill(child, signal.SIGKILL)
    assert not left


def test_an_environment_that_was_interrupted_before_it_had_pip_is_finished(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    scripts, binaries = tmp_path / "scripts", tmp_path / ".venv" / "bin"
    for folder in (scripts, binaries):
        folder.mkdir(parents=True)
    for file, text in {
        scripts / "check-python": "",
        scripts / "install-cpu-engine": "",
        scripts / "step": 'echo "$1"',
        binaries / "python": "exit 1",  # it has no pip
    }.items():
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    make = ["make", "-C", str(tmp_path), "install"]
    assert "make .venv" in subprocess.run(make, capture_output=True, text=True, check=True).stdout
    (tmp_path / ".venv" / ".installed").unlink()
    (binaries / "python").write_text("#!/bin/sh\nexit 0\n")
    assert "make .venv" not in subprocess.run(make, capture_output=True, text=True, check=True).stdout
