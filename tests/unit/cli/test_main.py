import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ppd.cli import lazily, main

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
    lazily.load("ppd.cli.paths")
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_interrupt_before_anything_is_imported_is_no_traceback() -> None:
    code = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "ppd.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from ppd.cli.entry import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_way_in_imports_nothing() -> None:
    code = "import sys; known = set(sys.modules); import ppd.cli.entry; print(*set(sys.modules) - known)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"ppd", "ppd.cli", "ppd.cli.entry"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--policy", "nonsense"],
            "--policy: there is no policy 'nonsense': choose from adaptive, ppd, static",
        ),
        (["--policy", "static:y=1"], "--policy: policy static:y=1"),
        (["--hardware", "nonsense"], "--hardware: there is no hardware profile 'nonsense': there are "),
        (["--placement", "1P"], "--placement: '1P' cannot serve"),
        (["--placement", "nonsense"], "--placement: 'nonsense' is no placement: write for example 1P1D"),
        (["--engine", "nonsense"], "--engine: Input should be 'vllm' or 'sim'"),
        (["--engine", "vllm", "--model", "nonsense"], "--model: there is no model 'nonsense': give smollm2"),
        (["--port", "70000"], "--port: Input should be less than or equal to 65535"),
    ],
)
@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_values_that_nobody_could_use_are_said_before_anything_is_made(
    flags: list[str],
    said: str,
    detach: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PPD_HOME", str(tmp_path / "home"))
    try:
        status = main.run(["up", "--engine", "sim", *flags, *detach])
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith(f"ppd up: {said}")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["worker", "--role", "decode", "--engine", "sim", "--model", "m"],
            "there is no hardware profile 'x'",
        ),
        (["compose", "--engine", "sim"], "there is no hardware profile 'x'"),
    ],
)
def test_other_commands_know_the_profiles_too(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main.run([*argv, "--hardware", "x"])
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    assert status == 2
    assert said in capsys.readouterr().err


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
