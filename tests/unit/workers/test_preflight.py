"""What an agent finds before it starts a first engine."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppd.runtime import cuda, hub
from ppd.runtime.cuda import Device, Seen
from ppd.runtime.hub import Access, Where
from ppd.runtime.problem import Problem
from tests.support.fake_cuda import FakeCuda
from workers import preflight
from workers.preflight import obstacle
from workers.settings import WorkerSettings

pytestmark = pytest.mark.unit

AWAY = Access(Where.HUB, problem=Problem("the hub is away", "wait"), transient=True)


def settings(**more: Any) -> WorkerSettings:
    return WorkerSettings(**{"role": "decode", "model": "org/model", **more})


class FakeHub:
    """Gives the answers one after the other, the last one again and again."""

    def __init__(self, *answers: Access) -> None:
        self._answers = list(answers)
        self.asked = 0

    def __call__(self, model: str) -> Access:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_BETWEEN_TRIES_S", 0.0)


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeHub) -> FakeHub:
    monkeypatch.setattr(hub, "access", fake)
    return fake


async def test_a_hub_that_comes_back_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    fake = install(monkeypatch, FakeHub(AWAY, AWAY, Access(Where.HUB)))
    assert await obstacle(settings()) is None
    assert fake.asked == 3


async def test_a_hub_that_stays_away_is_one(monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    fake = install(monkeypatch, FakeHub(AWAY))
    assert await obstacle(settings()) == AWAY.problem
    assert fake.asked == 3


async def test_a_refusal_is_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeHub(Access(Where.HUB, problem=Problem("gated", "ask"))))
    assert str(await obstacle(settings())) == "gated; ask"
    assert fake.asked == 1


@pytest.mark.parametrize(
    "args", [["--load-format", "dummy"], ["--hf_token=x"], ["--model", "other"], ["--revision=v2"]]
)
async def test_flags_that_change_where_the_model_is_from_leave_it_to_the_engine(
    monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    fake = install(monkeypatch, FakeHub(AWAY))
    wanted = settings()
    wanted.engine_args = args
    assert await obstacle(wanted) is None
    assert fake.asked == 0


@pytest.mark.parametrize("more", [{"engine": "sim"}, {"attach": "http://127.0.0.1:1", "role": "replica"}])
async def test_engines_that_are_not_started_here_have_none(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    fake = install(monkeypatch, FakeHub(AWAY))
    assert await obstacle(settings(**more)) is None
    assert fake.asked == 0


async def test_devices_are_looked_at_as_the_engine_would_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def fake_look(devices: str) -> Seen:
        asked.append(devices)
        return Seen(devices=(Device("H100"),), cuda=13000)

    monkeypatch.setattr(cuda, "look", fake_look)
    install(monkeypatch, FakeHub(Access(Where.HUB)))
    assert await obstacle(settings(backend="cuda", devices="3")) is None
    found = await obstacle(settings(backend="cuda", devices="3,4", tensor_parallel=2))
    assert asked == ["3", "3,4"]
    assert found is not None
    assert found.seen == "devices 3,4 are named, and the driver shows 1"


def _worker(folder: Path, env: dict[str, str], *flags: str) -> tuple[int, str]:
    """Exit code and output of an agent whose etcd and NATS do not run: it must not wait for them."""
    argv = [sys.executable, "-m", "ppd.cli.main", "worker", "--role", "decode", "--log-json", *flags]
    servers = ["--etcd", "127.0.0.1:9", "--nats", "nats://127.0.0.1:9"]
    done = subprocess.run(
        [*argv, *servers], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def _environment(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **more}


def test_an_agent_on_a_node_with_too_few_devices_says_so_and_ends(tmp_path: Path) -> None:
    env = _environment(FakeCuda(tmp_path).env(devices=2))
    code, text = _worker(tmp_path, env, "--model", str(tmp_path), "--backend", "cuda", "--devices", "2")
    assert code == 1
    assert "the engine cannot be started: the NVIDIA driver shows no device of CUDA_VISIBLE_DEVICES=2" in text
    assert "nvidia-smi -L" in text
    assert "Traceback" not in text


def test_an_agent_without_its_model_says_so_and_ends(tmp_path: Path) -> None:
    code, text = _worker(tmp_path, _environment({}), "--model", "/no/such/model")
    assert code == 1
    assert "the engine cannot be started: there is no /no/such/model; give the model's folder" in text
    assert "Traceback" not in text


def test_a_stop_does_not_wait_for_a_hub_that_is_away(tmp_path: Path) -> None:
    """A hub that takes connections and never answers."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        env = _environment({"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"})
        argv = [sys.executable, "-m", "ppd.cli.main", "worker", "--role", "decode", "--model", "org/model"]
        servers = ["--etcd", "127.0.0.1:9", "--nats", "nats://127.0.0.1:9"]
        agent = subprocess.Popen([*argv, *servers], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
        silent.settimeout(60)
        connection, _ = silent.accept()
        agent.send_signal(signal.SIGTERM)
        _, text = agent.communicate(timeout=60)
        connection.close()
    assert agent.returncode == 0
    assert "Traceback" not in text
