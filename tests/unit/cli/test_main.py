import importlib.util
import subprocess
import sys

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
