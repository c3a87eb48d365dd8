"""`ppd table` against a real planner: what it publishes is what the next command sees."""

import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ppd.core import seeds
from ppd.core.names import Role
from ppd.core.records import TableSnapshot, decode, encode
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from tests.support.planners import MODEL, PlannerProcess, add_worker, ask, eventually
from tests.support.servers import EtcdServer, NatsServer

pytestmark = pytest.mark.contract


class Cli:
    """`ppd table` as a user calls it."""

    def __init__(self, nats: str, namespace: str) -> None:
        self._where = ["--nats", nats, "--namespace", namespace]

    def __call__(self, verb: str, *args: str, fails: int = 0) -> str:
        """What it prints; where it fails, its message."""
        done = subprocess.run(
            [sys.executable, "-m", "ppd.cli.main", "table", verb, *args, *self._where],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def served(self, *args: str) -> TableSnapshot:
        return decode(self("show", "--json", *args).encode(), TableSnapshot)


@pytest.fixture
async def cli(
    etcd_server: EtcdServer, nats_server: NatsServer, namespace: str, tmp_path: Path
) -> AsyncIterator[Cli]:
    """Beside a planner that leads and has a table of 1P1D."""
    etcd, bus = Etcd([etcd_server.address]), Bus([nats_server.url], "test")
    await bus.connect()
    planner = PlannerProcess(tmp_path / "planner", etcd_server.address, nats_server.url, namespace)
    try:
        await add_worker(etcd, namespace, "p0", Role.PREFILL)
        await add_worker(etcd, namespace, "d0", Role.DECODE)

        async def published() -> bool:
            return "error" not in await ask(bus, namespace, "table.get")

        await eventually("a first table", published)
        yield Cli(nats_server.url, namespace)
    finally:
        planner.kill()
        await bus.close()
        await etcd.close()


def test_weights_freeze_and_rollback_make_versions_that_can_be_seen(cli: Cli):
    first = cli.served()
    assert (first.model, first.placement) == (MODEL, "1P1D")
    assert "weights of batch set to 1, 9" in cli("set-weights", "batch", "1", "9")
    assert cli.served().weights["batch"] == (1.0, 9.0)
    assert "frozen" in cli("freeze")
    assert cli.served().frozen
    assert f"rollback of {first.version}" in cli("rollback", str(first.version))
    now = cli.served()
    assert (now.weights, now.frozen, now.cells) == (first.weights, True, first.cells)
    assert not cli.served("--version", str(first.version)).frozen
    listed = cli("history")
    assert all(f"\n{version} " in listed for version in range(first.version, now.version + 1))
    told = json.loads(cli("diff", str(first.version), str(first.version + 1), "--json"))
    assert told["verdicts"]
    assert {verdict["slo_class"] for verdict in told["verdicts"]} == {"batch"}
    assert "not kept" in cli("rollback", "999", fails=2)


def test_a_profiles_table_serves_after_rebuild_and_the_seed_comes_back(cli: Cli, tmp_path: Path):
    measured = seeds.load("h100-llama-3.1-8b-3P1D")
    measured.model, measured.placement, measured.source = MODEL, "1P1D", "profile of today"
    path = tmp_path / "table.json"
    path.write_bytes(encode(measured))
    assert "profile of today" in cli("rebuild", "--table", str(path))
    assert cli.served().cells == measured.cells
    assert "seed" in cli("rebuild")
    assert cli.served().cells != measured.cells


def test_explain_tells_what_the_weights_make_of_a_turn(cli: Cli):
    turn = ("--n-ctx", "2000", "--n-in", "64", "--n-out", "64", "--qps", "1")
    assert "\nd-local: " in cli("explain", *turn)
    cli("set-weights", "mine", "0", "0.000001")
    cli("set-weights", "other", "1", "0")
    assert "\nd-local: " in cli("explain", *turn, "--slo", "other")
    assert "there is no SLO class" in cli("explain", "--slo", "nope", fails=2)
    assert "\np-d: it is the conversation's first turn" in cli("explain", "--turn", "1")


def test_explain_goes_by_the_policy_that_is_named(cli: Cli):
    told = json.loads(cli("explain", "--policy", "static:x=0", "--json"))
    assert (told["policy"], told["policy_known_from"]) == ("static:x=0", "request")
    assert told["path"] == "p-d"
    assert cli("explain").startswith("policy adaptive, the default: no frontend was asked")

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"policy": "static:x=1"}).encode()
            self.send_response(503)  # as while no model can be served
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as frontend:
        threading.Thread(target=frontend.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{frontend.server_port}"
        assert cli("explain", "--frontend", url).startswith("policy static:x=1\nd-local: ")
        frontend.shutdown()
    assert "there is no policy 'nope'" in cli("explain", "--policy", "nope", fails=2)


def test_without_a_planner_it_says_so(nats_server: NatsServer):
    assert "no planner leads in namespace 'nobody'" in Cli(nats_server.url, "nobody")("freeze", fails=1)
