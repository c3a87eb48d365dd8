"""`ppd doctor` on this machine, for the stack on the CPU: real packages, NIXL, etcd and NATS."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppd.cli.doctor.checks import CHECKS
from tests.support.servers import EtcdServer, NatsServer, free_port

pytestmark = pytest.mark.contract

Results = dict[str, dict[str, Any]]


def doctor(folder: Path, *flags: str, **env: str) -> tuple[int, Results]:
    """Exit status, and results by check."""
    argv = [sys.executable, "-m", "ppd.cli.main", "doctor", "--backend", "cpu", "--json", *flags]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "PPD_HOME": str(folder / ".ppd"), **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, {result["check"]: result for result in json.loads(done.stdout)["results"]}


def test_a_machine_that_runs_the_tests_can_run_a_stack(
    tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer
) -> None:
    servers = ["--etcd", etcd_server.address, "--nats", f"nats://{nats_server.address}"]
    status, found = doctor(tmp_path, "--patience", "3", "--port", str(free_port()), *servers)
    assert list(found) == [check.name for check in CHECKS]
    failed = {name: result["seen"] for name, result in found.items() if result["status"] == "failed"}
    assert failed.keys() <= {"ports", "disk"}, failed  # others use this machine too
    assert status == bool(failed)
    for name in ("python", "packages", "libnuma", "engine", "kv-transfer", "model", "etcd", "nats"):
        assert found[name]["status"] == "ok", found[name]
    for name in ("driver", "devices", "container-toolkit"):
        assert found[name]["status"] == "not applicable", found[name]
    assert all(result["do"] for result in found.values() if result["status"] in ("warn", "failed"))
    assert all("\n" not in result["seen"] + result["do"] for result in found.values())

    (read,) = found["kv-transfer"]["details"]["reads"]
    assert read["gb_per_s"] > 0
    assert read["error"] == ""
    assert read["route"], "UCX's log names the transports"

    offsets = found["clock"]["details"]["offset_s"]
    assert offsets.keys() == {etcd_server.address, f"nats://{nats_server.address}"}
    assert all(abs(seconds) < 5 for seconds in offsets.values()), "one machine has one clock"


def test_a_transport_that_is_not_there_fails_the_transfer_with_ucxs_words(tmp_path: Path) -> None:
    status, found = doctor(tmp_path, "--only", "kv-transfer", UCX_TLS="no_such_transport")
    assert status == 1
    assert found["kv-transfer"]["status"] == "failed"
    assert "UCX_TLS" in found["kv-transfer"]["do"]


def test_the_transport_that_is_named_is_taken(tmp_path: Path) -> None:
    status, found = doctor(tmp_path, "--only", "kv-transfer", UCX_TLS="tcp")
    assert status == 0
    assert "over tcp/" in found["kv-transfer"]["seen"]


class PlainNats(NatsServer):
    """A NATS server as it starts without flags."""

    def command(self) -> list[str]:
        return [super().command()[0], "--addr", "127.0.0.1", "--port", str(self.port)]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def test_a_nats_without_jetstream_is_of_no_use(tmp_path: Path) -> None:
    server = PlainNats(tmp_path / "nats")
    server.start()
    try:
        status, found = doctor(tmp_path, "--only", "nats", "--nats", f"nats://{server.address}")
    finally:
        server.kill()
    assert status == 1
    assert "has no JetStream" in found["nats"]["seen"]
    assert "--jetstream" in found["nats"]["do"]


def test_servers_that_stand_still_fail_at_their_deadlines(
    tmp_path: Path, fresh_etcd: EtcdServer, fresh_nats: Callable[..., NatsServer]
) -> None:
    nats = fresh_nats()
    for server in (fresh_etcd, nats):
        server.start()
        server.pause()
    named = ["--etcd", fresh_etcd.address, "--nats", f"nats://{nats.address}"]
    status, found = doctor(tmp_path, "--only", "etcd,nats,clock", *named)
    assert status == 1
    assert found["etcd"]["status"] == found["nats"]["status"] == "failed"
    assert found["clock"]["details"].get("offset_s", {}) == {}
