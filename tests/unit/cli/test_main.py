import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ppd.cli import main

pytestmark = pytest.mark.unit

COMMANDS = [command for group in main.GROUPS.values() for command in group]


def test_help_shows_every_command_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {command.name} " in text and command.summary in text for command in COMMANDS)
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_its_module(command: main.Command) -> None:
    assert importlib.util.find_spec(command.module) is not None


def test_an_unknown_command_is_refused_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["statsu"]) == 2
    assert "did you mean `ppd status`?" in capsys.readouterr().err


def test_a_command_like_no_other_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["zzz"]) == 2
    assert "`ppd --help` lists the commands" in capsys.readouterr().err


def test_help_imports_no_service_and_no_heavy_library() -> None:
    code = "import sys; from ppd.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert not loaded & {
        "pydantic",
        "fastapi",
        "nats",
        "aetcd",
        "torch",
        "workers",
        "planner",
        "controlplane",
    }


def test_a_reader_that_went_away_is_no_traceback() -> None:
    code = "import sys; from ppd.cli import main; sys.argv = ['ppd', '--help']; main.main()"
    writer = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.close()
    assert writer.stderr.read() == ""
    assert writer.wait(timeout=20) == 141


# A module whose import sends SIGINT and guards the import of another one, as libraries do for their plugins.
_INTERRUPTED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
def main(argv):
    print("runs all the same")
    return 0
"""


def test_an_interrupt_while_a_command_is_imported_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(_INTERRUPTED)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ppd.cli import main;"
        "main._find = lambda name: main.Command(name, 'interrupted', '');"
        "sys.argv = ['ppd', 'x']; main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_after_the_import_an_interrupt_reaches_the_command() -> None:
    handler = signal.getsignal(signal.SIGINT)
    main._import("ppd.cli.paths")
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_folder_that_cannot_be_written_is_said_with_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PPD_HOME", str(tmp_path / "file" / "home"))
    for flags in ([], ["--detach"]):
        assert main.run(["up", "--engine", "sim", *flags]) == 1
        assert "set PPD_HOME to a folder that can be written" in capsys.readouterr().err


def test_a_current_folder_that_is_gone_is_no_traceback(tmp_path: Path) -> None:
    code = (
        f"import os; os.mkdir({str(tmp_path / 'x')!r}); os.chdir({str(tmp_path / 'x')!r});"
        f"os.rmdir({str(tmp_path / 'x')!r}); from ppd.cli import paths; paths.home()"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PPD_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "ppd: the current folder is gone; change to another one, or set PPD_HOME\n"
