"""Every command in the docs works as it stands there, on a stack of simulated engines."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppd.cli.stack.ports import is_free
from tests.contract.docs.blocks import COMMANDS, ROOT, Block, blocks, pages, to_run

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]
_UP = "ppd up --engine sim --placement 1P3D --port 8000 --detach"
# The docs go back to version 3 and compare it with 7. A new placement has its table after a while only.
_TABLE = "until ppd table history --placement 1P3D; do sleep 0.5; done"
_VERSIONS = "ppd table freeze; ppd table unfreeze; " * 4


class Shell:
    """bash in a folder of its own that looks like a checkout, with a stack of its own."""

    def __init__(self, folder: Path) -> None:
        first = 27200 + 20 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
        self._port = next(port for port in range(first, first + 20) if is_free("127.0.0.1", port))
        self.folder = folder
        shutil.copytree(ROOT / "deploy" / "compose", folder / "deploy" / "compose")
        (folder / "workers").mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = {"PPD_HOME": str(folder / ".ppd"), "PPD_ADMIN_KEY": "let-me-in", "PATH": path}
        self._env = os.environ | home

    def run(self, script: str) -> tuple[int, str]:
        """Exit status and output; the docs' port is this stack's."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script.replace("8000", str(self._port))],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.run("ppd down")


def _starts_one(page: str) -> bool:
    return any("ppd up" in block.text for block in to_run(page))


def test_the_commands_for_a_running_stack_work(shell: Shell) -> None:
    """Of all pages, on one stack whose table has some versions; one test, so that one process starts it."""
    status, output = shell.run(f"{_UP}; {_TABLE}; {_VERSIONS}")
    assert status == 0, output
    for page in pages():
        if not _starts_one(page):
            _run(page, shell)


@pytest.mark.parametrize("page", [page for page in pages() if _starts_one(page)])
def test_the_commands_of_a_page_that_starts_a_stack_work(page: str, shell: Shell) -> None:
    _run(page, shell)


def _run(page: str, shell: Shell) -> None:
    for block in to_run(page):
        status, output = shell.run(block.text)
        assert status == 0, f"{block.where}\n{block.text}\n{output}"


@pytest.mark.parametrize("page", pages())
def test_every_block_of_commands_says_who_runs_it(page: str) -> None:
    for block in blocks(page):
        if block.language == "sh":
            assert block.note == "gpu" or not block.note or _runner(block).exists(), block.where
        else:
            assert not block.note or _runner(block).exists(), block.where
            assert block.language in ("", "text", "python", "json", "yaml", "toml"), block.where
            assert not COMMANDS.search(block.text) or block.language == "python", f"{block.where} is commands"


def _runner(block: Block) -> Path:
    assert block.note.startswith("by="), f"{block.where}: {block.note}"
    return ROOT / block.note.removeprefix("by=")


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    for where in _links(page):
        file, _, anchor = where.partition("#")
        target = (ROOT / "docs" / file).resolve() if file else ROOT / "docs" / page
        assert target.exists(), f"{page}: {where}"
        if anchor:
            assert anchor in _anchors(target), f"{page}: {where}"


def _links(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def _anchors(file: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_the_policy_of_the_guide_is_one() -> None:
    """Its code runs, its test passes, and it heeds what each policy must."""
    scope: dict[str, object] = {}
    for block in blocks("add-a-policy.md"):
        if block.language == "python":
            exec(compile(block.text, block.where, "exec"), scope)
    tests = [value for name, value in scope.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()  # type: ignore[operator]
    with pytest.raises(ValueError, match="share"):
        scope["Roomy"](kv_use=2)  # type: ignore[operator]
