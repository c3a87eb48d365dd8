"""The first run of `make`: what it installs, what it shows, and what an interrupt leaves of it."""

import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
        # A shell cannot trap what it was started to ignore, as all is that `nohup` starts.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
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


@pytest.mark.parametrize("status", [0, 3])
def test_a_step_away_from_a_terminal_says_now_and_then_what_it_does(tmp_path: Path, status: int) -> None:
    command = f"printf 'Downloading\\n\\n'; while [ ! -e end ]; do sleep 0.1; done; exit {status}"
    step = subprocess.Popen(
        [ROOT / "scripts" / "step", "the label", "sh", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PPD_STEP_EVERY_S": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert step.stdout
    assert step.stdout.readline() == "the label\n"
    for _ in range(2):
        line = step.stdout.readline()
        assert line.startswith("the label  ")
        assert line.endswith(" s  Downloading\n")
    (tmp_path / "end").touch()
    rest, _ = step.communicate(timeout=60)
    assert step.returncode == status
    assert ("FAILED after" if status else "done in") in rest


def _checkout(tmp_path: Path) -> Path:
    """The Makefile, beside scripts that do nothing; the environment's `bin`, whose Python has no pip."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    scripts, binaries = tmp_path / "scripts", tmp_path / ".venv" / "bin"
    for folder in (scripts, binaries):
        folder.mkdir(parents=True)
    for file, text in {
        scripts / "check-python": "",
        scripts / "install-cpu-engine": 'echo "$@"',
        scripts / "cpu-overrides.txt": "",
        scripts / "step": 'echo "$1"',
        binaries / "python": "exit 1",  # it has no pip
    }.items():
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    return binaries


def test_an_environment_that_was_interrupted_before_it_had_pip_is_finished(tmp_path: Path) -> None:
    binaries = _checkout(tmp_path)
    make = ["make", "-C", str(tmp_path), "install"]
    assert "make .venv" in subprocess.run(make, capture_output=True, text=True, check=True).stdout
    (tmp_path / ".venv" / ".installed").unlink()
    (binaries / "python").write_text("#!/bin/sh\nexit 0\n")
    assert "make .venv" not in subprocess.run(make, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("more", [[], ["EXTRA=browser"]])
def test_what_make_installs_is_a_requirement_of_extras_that_exist(tmp_path: Path, more: list[str]) -> None:
    _checkout(tmp_path)
    done = subprocess.run(
        ["make", "-C", str(tmp_path), "install", *more], capture_output=True, text=True, check=True
    )
    (wanted,) = re.findall(r" -e \.(\[.*\])$", done.stdout, re.MULTILINE)
    extras = Requirement(f"ppd{wanted}").extras
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"engine-cpu", "test"} <= extras <= known.keys()
    assert ("browser" in extras) == bool(more)


class TestGroups:
    @staticmethod
    def run(tmp_path: Path, failing: str) -> subprocess.CompletedProcess[str]:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\necho "ran $*"\ncase "$*" in {failing}) exit 1;; esac\n')
        python.chmod(0o755)
        return subprocess.run([ROOT / "scripts" / "test-groups", python], capture_output=True, text=True)

    def test_a_group_that_fails_keeps_no_other_from_running(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "*worksteal*")
        assert done.returncode == 1
        assert done.stdout.count("ran -m pytest") == 3
        summary = done.stdout.splitlines()[-3:]
        assert [line.split()[1] for line in summary] == ["FAILED", "passed", "passed"]

    def test_all_passed(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, "never").returncode == 0
