"""The processes of a run: stand-in engines, the frontend with its etcd and NATS, and the peer."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from ppd.core.names import Role, WorkerStatus, worker_key
from ppd.core.records import WorkerRecord, encode
from ppd.runtime.etcd import Etcd, EtcdError

ROUTER_CORE, LOAD_CORE = "0", "1"


class Processes:
    """Children that end with the run."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        self._dir = Path(tempfile.mkdtemp(prefix="relay-"))

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        shutil.rmtree(self._dir, ignore_errors=True)

    def start(self, name: str, core: str, command: list[str], **env: str) -> int:
        """Raises FileNotFoundError where there is no such program, beside this Python or on the PATH."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        program = shutil.which(command[0], path=path)
        if program is None:
            raise FileNotFoundError(f"{command[0]} is neither beside {sys.executable} nor on the PATH")
        with open(self._dir / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                ["taskset", "-c", core, program, *command[1:]],
                stdout=log,
                stderr=log,
                env={**os.environ, **env},
            )
        self._children.append(child)
        return child.pid

    def log(self, name: str) -> str:
        return (self._dir / f"{name}.log").read_text(errors="replace")[-2000:]

    def folder(self, name: str) -> str:
        return str(self._dir / name)


def wait_http(url: str, within_s: float = 60) -> None:
    """Until `url` answers 200. Raises TimeoutError."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not come up")


def engines(processes: Processes, port: int, gap_ms: float, chunks: int, batched: bool = False) -> None:
    """P on `port`, D on the next one."""
    module = [sys.executable, "-m", "bench.relay.engine", str(port), str(gap_ms), str(chunks)]
    module += ["batched"] if batched else []
    processes.start("engine", LOAD_CORE, module)
    wait_http(f"http://127.0.0.1:{port}/health")


def frontend(processes: Processes, port: int, engine_port: int, profile: str = "", **env: str) -> int:
    """Our frontend with real etcd and NATS, so that its telemetry is on; its pid."""
    etcd, peer, nats = port + 1, port + 2, port + 3
    url = f"http://127.0.0.1:{etcd}"
    peer_url = f"http://127.0.0.1:{peer}"
    processes.start("etcd", LOAD_CORE, [
        "etcd", "--data-dir", processes.folder("etcd"), "--listen-client-urls", url,
        "--advertise-client-urls", url, "--listen-peer-urls", peer_url,
        "--initial-advertise-peer-urls", peer_url, "--initial-cluster", f"default={peer_url}",
        "--log-level", "error",
    ])  # fmt: skip
    processes.start("nats", LOAD_CORE, [
        "nats-server", "-a", "127.0.0.1", "-p", str(nats), "-js", "-sd", processes.folder("nats"),
    ])  # fmt: skip
    asyncio.run(_register(f"127.0.0.1:{etcd}", engine_port))
    command = ["-m", "ppd.cli.main", "frontend", "--port", str(port)]
    pid = processes.start(
        "frontend",
        ROUTER_CORE,
        [sys.executable, *(["-m", "cProfile", "-o", profile] if profile else []), *command],
        PPD_ETCD=f"127.0.0.1:{etcd}",
        PPD_NATS=f"nats://127.0.0.1:{nats}",
        PPD_LOG_LEVEL="warning",
        **env,
    )
    wait_http(f"http://127.0.0.1:{port}/ready")
    return pid


async def _register(endpoint: str, engine_port: int) -> None:
    """Both stand-ins, for as long as the lease of a long run."""
    etcd = Etcd([endpoint])
    for number, role in enumerate((Role.PREFILL, Role.DECODE)):
        name = role.letter.lower() + "0"
        record = WorkerRecord(
            worker_id=f"{name}-1",
            name=name,
            role=role,
            model="m",
            url=f"http://127.0.0.1:{engine_port + number}",
            status=WorkerStatus.READY,
        )
        for _ in range(100):
            try:
                await etcd.put(worker_key("default", record.worker_id), encode(record))
                break
            except EtcdError:
                await asyncio.sleep(0.1)
    await etcd.close()


def peer(processes: Processes, binary: str, port: int, engine_port: int) -> int:
    """vllm-router in front of the same engines; its pid."""
    pid = processes.start("peer", ROUTER_CORE, [
        binary, "--host", "127.0.0.1", "--port", str(port), "--vllm-pd-disaggregation",
        "--kv-connector", "nixl", "--prefill", f"http://127.0.0.1:{engine_port}",
        "--decode", f"http://127.0.0.1:{engine_port + 1}", "--policy", "round_robin",
        "--prometheus-port", str(port + 1), "--log-level", "error",
    ])  # fmt: skip
    wait_http(f"http://127.0.0.1:{port}/health")
    return pid


def floor(processes: Processes, port: int, engine_port: int) -> int:
    """A bare relay in front of D alone; its pid."""
    module = ["-m", "bench.relay.floor", str(port), str(engine_port + 1)]
    pid = processes.start("floor", ROUTER_CORE, [sys.executable, *module])
    wait_http(f"http://127.0.0.1:{port}/health")
    return pid
