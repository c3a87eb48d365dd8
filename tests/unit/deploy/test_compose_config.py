"""What the compose command makes of the files, for every placement, and of the one file that a user edits."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
COMPOSE = shutil.which("docker-compose")
pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(COMPOSE is None, reason="docker-compose is not installed"),
]
DEPLOY = Path(__file__).parents[3] / "deploy" / "compose"
PLACEMENTS = sorted(file.stem for file in (DEPLOY / "workers").glob("*-*.yaml"))
CONTROL = {"volumes", "etcd", "nats", "planner-a", "planner-b", "frontend", "jaeger", "prometheus", "grafana"}
PREPARING = {"models"}  # makes the small model of the CPU stacks, and ends


def config(folder: Path) -> dict[str, Any]:
    """The stack that `docker-compose up` would start in this folder, with nothing but its .env."""
    keep = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    done = subprocess.run(
        [str(COMPOSE), "config"], cwd=folder, env=keep, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = yaml.safe_load(done.stdout)
    return parsed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """deploy/compose as a user has it after `cp .env.example .env`."""
    made = tmp_path / "compose"
    shutil.copytree(DEPLOY, made)
    shutil.copy(made / ".env.example", made / ".env")
    return made


def edit(folder: Path, name: str, value: str) -> None:
    """As a person would: the line that sets `name` or, in a comment, shows how to."""
    lines = (folder / ".env").read_text().splitlines()
    assert sum(line.lstrip("#").startswith(f"{name}=") for line in lines) == 1
    changed = [f"{name}={value}" if line.lstrip("#").startswith(f"{name}=") else line for line in lines]
    (folder / ".env").write_text("\n".join(changed) + "\n")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_is_a_valid_stack(folder: Path, placement: str) -> None:
    edit(folder, "PPD_PLACEMENT", placement)
    found = config(folder)
    engines = found["services"].keys() - CONTROL - PREPARING
    assert found["services"].keys() >= CONTROL
    digits = [int(c) for c in placement.partition("-")[2] if c.isdigit()]
    assert len(engines) == sum(digits)
    published = {
        name: port for name, service in found["services"].items() for port in service.get("ports", [])
    }
    assert published.keys() == {"frontend", "jaeger", "prometheus", "grafana"}
    assert all(str(port).startswith("127.0.0.1:") for port in published.values()), published


def test_four_gpus_are_one_file_and_one_command(folder: Path) -> None:
    edit(folder, "PPD_PLACEMENT", "gpu-2P2D")
    edit(folder, "PPD_MODEL", "my/model")
    services = config(folder)["services"]
    engines = {name: service for name, service in services.items() if name not in CONTROL}
    assert sorted(engines) == ["d0", "d1", "p0", "p1"]
    commands = [" ".join(map(str, engine["command"])) for engine in engines.values()]
    assert all("my/model" in command for command in commands)
    devices = [command.split("--devices")[1].lstrip(" =").split()[0] for command in commands]
    assert sorted(devices) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("placement", "model"),
    [
        ("gpu-1P3D", "Qwen/Qwen2.5-7B-Instruct"),
        ("cpu-1P1D", "/models/ppd/models/smollm2"),
        ("sim-1P3D", "sim"),
    ],
)
def test_each_kind_has_a_model_that_it_can_load_without_a_word_of_the_user(
    folder: Path, placement: str, model: str
) -> None:
    edit(folder, "PPD_PLACEMENT", placement)
    services = config(folder)["services"]
    engines = [service for name, service in services.items() if name not in CONTROL | PREPARING]
    for command in (engine["command"] for engine in engines):
        words = command.split() if isinstance(command, str) else command
        assert words[words.index("--model") + 1] == model


def test_what_is_built_here_is_never_pulled_from_a_registry(folder: Path) -> None:
    for placement in PLACEMENTS:
        edit(folder, "PPD_PLACEMENT", placement)
        for name, service in config(folder)["services"].items():
            assert ("build" in service) == service["image"].startswith("localhost/"), name
