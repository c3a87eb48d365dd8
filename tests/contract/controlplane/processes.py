"""`ppd frontend` as processes of its own, before the test's fake engines."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.contract.controlplane.conftest import Cluster
from tests.support.servers import free_port


class Processes:
    """One frontend of several processes; every request takes a connection of its own, and so any of them."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, folder: Path) -> None:
        self.process = process
        self.url = url
        self._folder = folder
        self.http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, ssl=False), timeout=aiohttp.ClientTimeout(60)
        )

    def children(self) -> list[int]:
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    def served_by(self) -> list[int]:
        """The process of each chat so far, from the access log."""
        lines = [json.loads(line) for line in (self._folder / "access").read_text().splitlines()]
        return [line["pid"] for line in lines if line["path"].startswith("/v1/chat")]

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        async with self.http.get(self.url + path, headers=headers) as response:
            return response.status, await response.text()

    async def chat(self, *messages: str, **headers: str) -> tuple[str, str]:
        """The decode worker and the answer."""
        listed = [{"role": "assistant" if i % 2 else "user", "content": m} for i, m in enumerate(messages)]
        body: dict[str, Any] = {"model": "m", "messages": listed}
        async with self.http.post(self.url + "/v1/chat/completions", json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return response.headers["x-ppd-decode"], answer["choices"][0]["message"]["content"]


def _start(argv: list[str], log: Path, ulimit: str = "") -> subprocess.Popen[bytes]:
    if ulimit:
        argv = ["bash", "-c", f'{ulimit}; exec "$@"', "bash", *argv]
    with open(log, "wb") as file:
        return subprocess.Popen(argv, stdout=file, stderr=file)


def _whole(health: dict[str, Any]) -> bool:
    """All engines and both servers are there; no planner runs, so there is no table."""
    connected = health["etcd"] == health["nats"] == "connected"
    return connected and not any(model["missing"] for model in health["models"].values())


def _listening(port: int) -> int:
    """How many of the processes let clients in: each listens once it can serve."""
    found = psutil.net_connections("tcp")
    return sum(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in found)


@asynccontextmanager
async def processes(
    cluster: Cluster, folder: Path, count: int, *flags: str, scheme: str = "http", ulimit: str = ""
) -> AsyncIterator[Processes]:
    """Running, and aware of all engines; ended by SIGTERM."""
    port = free_port()
    argv = [
        *(sys.executable, "-m", "ppd.cli.main", "frontend", "--port", str(port), "--processes", str(count)),
        *("--etcd", cluster.etcd_server.address, "--nats", cluster.nats_server.url),
        *("--namespace", cluster.namespace, "--access-log", str(folder / "access")),
        *("--session-wait-s", "20", *flags),  # that they agree must not hang on the machine's speed
    ]
    process = _start(argv, folder / "log", ulimit)
    made = Processes(process, f"{scheme}://127.0.0.1:{port}", folder)
    try:
        async with asyncio.timeout(200):
            seen = 0
            while seen < 4 * count:  # in a row, so that very likely every process was asked
                assert process.poll() is None, (folder / "log").read_text()
                if _listening(port) < count:
                    await asyncio.sleep(0.1)
                    continue
                try:
                    status, text = await made.get("/health")
                except (aiohttp.ClientError, TimeoutError):
                    status, text = 0, ""
                whole = status == 200 and _whole(json.loads(text))
                seen = seen + 1 if whole else 0
                if not whole:
                    await asyncio.sleep(0.1)
        yield made
    finally:
        await made.http.close()
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
