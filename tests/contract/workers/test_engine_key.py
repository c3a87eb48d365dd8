"""Engines that ask for a key: who has it is served, who has not is told, and nobody sees it."""

import json
import os
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.contract.workers.conftest import until
from tests.support.commands import Running, ran
from tests.support.processes import commands
from tests.support.servers import EtcdServer, NatsServer, free_port

pytestmark = [pytest.mark.contract, pytest.mark.timeout(180)]
KEY = "k3y-of-the-engines"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPD_ENGINE_KEY", KEY)


@pytest.fixture
def where(etcd_server: EtcdServer, nats_server: NatsServer, namespace: str) -> list[str]:
    return ["--etcd", etcd_server.address, "--nats", nats_server.url, "--namespace", namespace]


async def _get(url: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
        return answer.status


async def test_a_worker_with_a_key_serves_those_who_have_it(worker) -> None:
    agent = worker("d0", "--role", "decode")
    url = (await agent.record()).url
    assert await _get(f"{url}/v1/models") == 401
    assert await _get(f"{url}/v1/models", authorization="Bearer another") == 401
    assert await _get(f"{url}/v1/models", authorization=f"Bearer {KEY}") == 200
    assert await _get(f"{url}/health") == 200
    assert await _get(f"{url}/metrics") == 200
    tree = psutil.Process(agent.process.pid)
    assert KEY not in str(commands([tree, *tree.children(recursive=True)]))
    assert KEY not in agent.log + agent.engine_log
    assert "PPD_ENGINE_KEY" not in agent.engine().environ()


async def test_its_load_is_reported(worker, where: list[str]) -> None:
    await worker("r0", "--role", "replica").record()

    async def load() -> object:
        report = json.loads(ran("status", "--json", *where).stdout)
        return report["workers"][0]["load"]

    await until(load, bool, lambda: "no load report came")


async def test_vllms_own_variable_does_too(worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PPD_ENGINE_KEY")
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    url = (await worker("d0", "--role", "decode").record()).url
    assert await _get(f"{url}/v1/models") == 401


@pytest.mark.parametrize(("given", "status"), [(KEY, 200), ("another", 502)])
async def test_a_frontend_needs_the_same_key(
    worker, where: list[str], tmp_path: Path, given: str, status: int
) -> None:
    await worker("d0", "--role", "decode").record()
    await worker("p0", "--role", "prefill").record()
    url = f"http://127.0.0.1:{free_port()}"
    env = os.environ | {"PPD_ENGINE_KEY": given}
    frontend = Running(["frontend", "--port", url.rpartition(":")[2], *where], tmp_path / "log", env)
    body = {"model": "small", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    try:
        frontend.says("listening on")
        await until(lambda: _get(f"{url}/ready"), lambda found: found == 200, lambda: frontend.log)
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{url}/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status == status, await answer.text()
    finally:
        frontend.end()
    assert ("PPD_ENGINE_KEY is not the engine's" in frontend.log) == (given != KEY)
    assert given not in frontend.log


async def test_an_agent_with_another_key_ends_and_says_why(worker, where: list[str], tmp_path: Path) -> None:
    url = (await worker("r0", "--role", "replica").record()).url
    env = os.environ | {"PPD_ENGINE_KEY": "another"}
    argv = ["worker", "--name", "r1", "--role", "replica", "--model", "small", "--attach", url, *where]
    other = Running(argv, tmp_path / "log", env)
    assert other.process.wait(60) == 1
    assert "the engine refuses the key: PPD_ENGINE_KEY" in other.log
    assert "another" not in other.log


@pytest.mark.parametrize("argument", ["--api-key=x", "--api_key"])
def test_a_key_in_the_arguments_is_refused(argument: str) -> None:
    for command in (["worker", "--role", "replica", "--model", "small"], ["up", "--engine", "sim"]):
        done = ran(*command, "--", argument, "s3cret")
        assert done.returncode == 2
        assert "set PPD_ENGINE_KEY in the environment" in done.stderr
        assert "s3cret" not in done.stderr


def test_a_key_that_would_be_more_than_a_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPD_ENGINE_KEY", "s3cret\r\nx: y")
    for command in (["frontend"], ["worker", "--role", "replica", "--model", "small"]):
        done = ran(*command)
        assert done.returncode == 2
        assert "printable ASCII" in done.stderr
        assert "s3cret" not in done.stderr
