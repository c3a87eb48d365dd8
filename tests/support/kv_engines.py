"""Real engines for tests, each started by its agent, and the hand-off spoken to them directly over HTTP."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ppd.cli.model import catalog
from ppd.core.names import KV_HOLD, KV_REQUEST_ID, KV_TRACEPARENT, workers_prefix
from ppd.core.records import WorkerRecord, decode
from ppd.runtime.etcd import Etcd, EtcdError
from tests.support.servers import EtcdServer, NatsServer, binary

READY_S = 240.0


def test_model() -> str:
    """A folder with the small model: PPD_TEST_MODEL, or the packaged one, prepared."""
    if given := os.environ.get("PPD_TEST_MODEL"):
        return given
    subprocess.run([sys.executable, "-m", "ppd.cli.model.convert", catalog.DEFAULT], check=True)
    return catalog.find(catalog.DEFAULT).source


class Agent:
    """One `ppd worker` process and, below it, its engine."""

    def __init__(
        self, name: str, folder: Path, args: list[str], engine_args: list[str] | None = None
    ) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [binary("ppd"), "worker", "--name", name, *args, "--run-dir", str(folder)]
        if engine_args:
            command += ["--", *engine_args]
        with (folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text(errors="replace")

    @property
    def engine_log(self) -> str:
        return (self.folder / "engine.log").read_text(errors="replace")

    def end(self) -> None:
        """As an operator in a hurry: SIGTERM twice, then wait; kill -9 as the last resort."""
        for _ in range(2):
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def registered(etcd: EtcdServer, namespace: str) -> dict[str, WorkerRecord]:
    """The workers in etcd, by name. On a busy machine etcd may need a second question, and a third."""
    client = Etcd([etcd.address])
    try:
        for left in reversed(range(10)):
            try:
                found, _ = await client.list(workers_prefix(namespace))
                break
            except EtcdError:
                if not left:
                    raise
                await asyncio.sleep(0.5)
        return {record.name: record for record in (decode(v, WorkerRecord) for v in found.values())}
    finally:
        await client.close()


@dataclass
class Pair:
    """One prefill and one decode engine under their agents."""

    etcd: EtcdServer
    nats: NatsServer
    namespace: str
    agents: dict[str, Agent]
    records: dict[str, WorkerRecord] = field(default_factory=dict)

    @property
    def p(self) -> WorkerRecord:
        return self.records["p0"]

    @property
    def d(self) -> WorkerRecord:
        return self.records["d0"]

    async def wait(self, names: set[str]) -> None:
        """Until these are registered. Fails with the agents' logs if they don't come."""
        until_s = time.monotonic() + READY_S
        while not names <= set(self.records):
            self.records = await registered(self.etcd, self.namespace)
            dead = [a for a in self.agents.values() if a.process.poll() is not None]
            if dead or time.monotonic() > until_s:
                raise RuntimeError("\n".join(a.log[-4000:] for a in dead or self.agents.values()))
            await asyncio.sleep(0.25)

    async def new_incarnation(self, name: str, old: str) -> None:
        """Until `name` is registered as another worker than `old`."""
        while self.records.get(name) is None or self.records[name].worker_id == old:
            self.records.pop(name, None)
            await self.wait({name})
            await asyncio.sleep(0.25)


@contextmanager
def pair(folder: Path, *extra: str, engine_args: list[str] | None = None) -> Iterator[Pair]:
    """etcd, NATS and the two agents, not waited for; all ended afterwards."""
    etcd, nats = EtcdServer(folder / "etcd"), NatsServer(folder / "nats")
    agents: dict[str, Agent] = {}
    try:
        etcd.start()
        nats.start()
        common = ["--etcd", etcd.address, "--nats", nats.url, "--model", test_model()]
        common += ["--served-name", "small", "--max-model-len", "4096", *extra]
        for name, role, core in (("p0", "prefill", 0), ("d0", "decode", (os.cpu_count() or 1) - 1)):
            args = ["--role", role, "--cores", str(core), *common]
            agents[name] = Agent(name, folder / name, args, engine_args)
        yield Pair(etcd, nats, "default", agents)
    finally:
        for agent in agents.values():
            agent.end()
        nats.kill()
        etcd.kill()


def new_traceparent(sampled: bool = True) -> str:
    return f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-{sampled:02x}"


@dataclass
class Turn:
    """What came of one turn through both engines."""

    text: str
    usage: dict[str, Any]
    prefill_usage: dict[str, Any]
    request_id: str
    traceparent: str
    held: dict[str, Any] | None  # D's parameters, if it holds


class Client:
    """The hand-off as a frontend does it."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        # Kept for less time than the engines keep them, else one closes just as the next request is written.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=180))

    async def close(self) -> None:
        await self._session.close()

    async def post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(url + "/v1/chat/completions", json={"model": "small", **body}) as reply:
            answer = await reply.json()
            assert reply.status == 200, answer
            return dict(answer)

    async def prefill(self, body: dict[str, Any], params: dict[str, Any] | None = None) -> dict[str, Any]:
        """The hop through P, with D's parameters for a pull-back if given."""
        params = {"do_remote_decode": True, "do_remote_prefill": False, **(params or {})}
        return await self.post(self._pair.p.url, {**body, "max_tokens": 1, "kv_transfer_params": params})

    async def turn(
        self,
        messages: list[dict[str, str]],
        max_tokens: int = 24,
        hold: bool = False,
        pull_back: dict[str, Any] | None = None,
        sampled: bool = True,
    ) -> Turn:
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
        tags = {KV_TRACEPARENT: new_traceparent(sampled), KV_REQUEST_ID: uuid.uuid4().hex}
        first = await self.prefill(body, {**pull_back, **tags} if pull_back else None)
        params = {**first["kv_transfer_params"], **tags} | ({KV_HOLD: True} if hold else {})
        answer = await self.post(self._pair.d.url, {**body, "kv_transfer_params": params})
        return Turn(
            answer["choices"][0]["message"]["content"],
            answer["usage"],
            first["usage"],
            tags[KV_REQUEST_ID],
            tags[KV_TRACEPARENT],
            answer.get("kv_transfer_params"),
        )

    async def local(self, messages: list[dict[str, str]], max_tokens: int = 24) -> dict[str, Any]:
        """D alone."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
        return await self.post(self._pair.d.url, body)


def metric(url: str, name: str) -> float:
    """The sum of one sample over all its labels, as the engine exports it."""
    with urllib.request.urlopen(url + "/metrics", timeout=20) as reply:
        text = reply.read().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )
