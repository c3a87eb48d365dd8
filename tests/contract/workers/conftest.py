"""An agent with a simulated engine, as real processes."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from ppd.core.records import WorkerRecord
from tests.support.kv_engines import Agent, registered
from tests.support.processes import commands
from tests.support.servers import EtcdServer, NatsServer

DEADLINE_S = 60.0


class Worker(Agent):
    """An agent, and what tests ask of it."""

    def __init__(
        self,
        name: str,
        folder: Path,
        args: list[str],
        engine_args: list[str],
        etcd: EtcdServer,
        namespace: str,
    ) -> None:
        super().__init__(name, folder, args, engine_args)
        self._etcd, self._namespace = etcd, namespace

    def engine(self) -> psutil.Process:
        """The engine that runs now, as the agent's log tells its port."""
        lines = commands(psutil.Process(self.process.pid).children())
        found = [pid for pid, line in lines.items() if "workers.sim.server" in line]
        assert len(found) == 1, self.log
        return psutil.Process(found[0])

    async def record(self, other_than: str = "") -> WorkerRecord:
        """Its record, once it is there and is not that of the incarnation `other_than`."""
        return await until(
            self._read, lambda r: r is not None and r.worker_id != other_than, lambda: self.log
        )

    async def gone(self) -> None:
        await until(self._read, lambda record: record is None, lambda: self.log)

    async def _read(self) -> WorkerRecord | None:
        return (await registered(self._etcd, self._namespace)).get(self.name)

    async def says(self, pattern: str) -> re.Match[str]:
        """A match in its log."""

        async def look() -> re.Match[str] | None:
            return re.search(pattern, self.log)

        return await until(look, lambda match: match is not None, lambda: self.log)

    async def exit_code(self) -> int:
        async def look() -> int | None:
            return self.process.poll()

        return await until(look, lambda code: code is not None, lambda: self.log)


async def until(read: Callable, good: Callable, why: Callable[[], str]):
    """What `read` returns, once it is `good`; fails with what `why` says after a minute."""
    until_s = time.monotonic() + DEADLINE_S
    while not good(value := await read()):
        assert time.monotonic() < until_s, why()
        await asyncio.sleep(0.1)
    return value


@pytest.fixture
def worker(
    tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer, namespace: str
) -> Iterator[Callable[..., Worker]]:
    """Starts agents: `worker("d0", "--role", "decode", …)`."""
    made: list[Worker] = []

    def start(name: str, *args: str, engine_args: Sequence[str] = ()) -> Worker:
        common = ["--etcd", etcd_server.address, "--nats", nats_server.url, "--namespace", namespace]
        common += ["--engine", "sim", "--model", "small", "--probe-every-s", "0.5", "--hang-s", "2"]
        folder = tmp_path / name
        made.append(Worker(name, folder, [*common, *args], list(engine_args), etcd_server, namespace))
        return made[-1]

    yield start
    for one in made:
        one.end()
