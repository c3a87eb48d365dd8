"""Addresses of etcd and NATS, as every command takes them: none is spoken to otherwise than its scheme says,
no password is printed, and a clean end is no outage."""

import json
from pathlib import Path

import psutil
import pytest

from tests.support.commands import Running, ran
from tests.support.processes import commands
from tests.support.servers import EtcdServer, NatsServer, free_port

pytestmark = pytest.mark.contract

SERVICES = {
    "frontend": ["frontend", "--port", "0"],
    "planner": ["planner", "--port", "0"],
    "worker": ["worker", "--role", "decode", "--engine", "sim", "--model", "m"],
}
CLIENTS = {
    "status": ["status"],
    "table": ["table", "show"],
    "explain": ["table", "explain"],
    "profile": ["profile", "--publish"],
    "doctor": ["doctor", "--only", "etcd,nats,clock"],
}
SERVES = {"frontend": "listening on", "planner": "leading as", "worker": "serves m as decode"}
SECRET = "s3cret"


class NatsWithPassword(NatsServer):
    """Lets in only the user `ppd`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [f'authorization: {{ user: "ppd", password: "{SECRET}" }}'])

    @property
    def url(self) -> str:
        return f"nats://ppd:{SECRET}@{self.address}"

    def is_ready(self) -> bool:
        return "Server is ready" in self.log


@pytest.mark.parametrize("command", [*SERVICES.values(), *CLIENTS.values()], ids=[*SERVICES, *CLIENTS])
def test_tls_that_would_be_plain_text_is_refused(command: list[str]) -> None:
    done = ran(*command, "--etcd", f"https://u:{SECRET}@h:2379", "--nats", f"tls://u:{SECRET}@h:4222")
    assert done.returncode == 2
    for line, said in zip(done.stderr.splitlines(), ("http://h:2379", "nats://h:4222"), strict=True):
        assert "is not supported" in line
        assert f"write {said}" in line
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("command", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_no_service_logs_the_password_of_a_server_that_is_away(
    command: list[str], as_json: bool, etcd_server: EtcdServer, namespace: str, tmp_path: Path
) -> None:
    nats = f"nats://ppd:{SECRET}@127.0.0.1:{free_port()}"
    flags = ["--etcd", etcd_server.address, "--nats", nats, "--namespace", namespace, "--log-level", "debug"]
    running = Running([*command, *flags, *(["--log-json"] if as_json else [])], tmp_path / "log")
    try:
        running.says("waiting for NATS at nats://***@127.0.0.1:")
    finally:
        running.end()
    assert SECRET not in running.log
    if as_json:
        assert [json.loads(line) for line in running.log.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("command", CLIENTS.values(), ids=CLIENTS)
def test_no_client_prints_the_password_of_a_server_that_is_away(
    command: list[str], etcd_server: EtcdServer
) -> None:
    port = free_port()
    nats = f"nats://ppd:{SECRET}@127.0.0.1:{port}"
    done = ran(*command, "--etcd", etcd_server.address, "--nats", nats)
    assert done.returncode == 1
    assert SECRET not in done.stdout + done.stderr
    if command[0] != "profile":  # which asks the frontend first
        assert f"nats://***@127.0.0.1:{port}" in done.stdout + done.stderr


@pytest.mark.parametrize("command", SERVICES.values(), ids=SERVICES)
def test_a_clean_end_warns_of_nothing(
    command: list[str], etcd_server: EtcdServer, namespace: str, tmp_path: Path
) -> None:
    """On a server that asks for a password, which it gets."""
    nats = NatsWithPassword(tmp_path / "nats")
    nats.start()
    flags = ["--etcd", etcd_server.address, "--nats", nats.url, "--namespace", namespace]
    running = Running([*command, *flags], tmp_path / "log")
    try:
        running.says("connected to NATS")
        running.says(SERVES[command[0]])
        children = psutil.Process(running.process.pid).children(recursive=True)
        before = len(running.log)
        assert running.end() == 0
    finally:
        nats.kill()
    assert "WARNING" not in running.log[before:]
    assert SECRET not in running.log
    assert SECRET not in str(commands(children))
