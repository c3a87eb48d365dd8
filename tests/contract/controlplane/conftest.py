"""Frontends in this process, on real etcd and NATS, before fake engines."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from controlplane.app import Frontend
from controlplane.http.server import Server, bind
from controlplane.processes.serve import limits_of
from controlplane.settings import FrontendSettings
from ppd.core.names import Role, worker_key
from ppd.core.records import encode
from ppd.runtime.etcd import Etcd
from tests.support.nats_client import settled
from tests.support.servers import EtcdServer, NatsServer
from tests.unit.controlplane.conftest import Stack, record
from tests.unit.controlplane.fakes import FakeEngine


async def until(condition: Callable[[], bool], within_s: float = 30) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def written(stack: Stack) -> None:
    """What the frontend's turns wrote behind themselves is in the bucket, for other frontends to find."""
    await until(lambda: not stack.frontend.sharing.pending)
    await settled(stack.frontend.sharing._bus.nc)


@asynccontextmanager
async def frontend(
    etcd: EtcdServer, nats: NatsServer, namespace: str, **options: Any
) -> AsyncIterator[Stack]:
    """One frontend with all its tasks; engines are registered by the test."""
    settings = FrontendSettings(etcd=[etcd.address], nats=[nats.url], namespace=namespace, **options)
    made = Frontend(settings, None, logging.getLogger("test"))
    made.start()
    server, listener = Server(made, 1, limits_of(settings)), bind("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve([listener]))
    await server.started.wait()
    stack = Stack(made, server, listener.getsockname()[1], {})
    try:
        yield stack
    finally:
        await stack.http.close()
        server.stop()
        await serving
        await made.close()


class Cluster:
    """Real registry and bus, fake engines, any number of frontends."""

    def __init__(self, etcd: EtcdServer, nats: NatsServer, namespace: str, stack: AsyncExitStack) -> None:
        self.etcd_server, self.nats_server, self.namespace = etcd, nats, namespace
        self.etcd = Etcd([etcd.address])
        self.engines: dict[str, FakeEngine] = {}
        self._stack = stack

    async def register(self, name: str, role: Role, incarnation: int = 1, **fields: Any) -> FakeEngine:
        if name not in self.engines:
            self.engines[name] = await FakeEngine(name).start()
        worker = record(self.engines[name], role, name, **fields)
        worker.worker_id = f"{name}-{incarnation}"
        await self.etcd.put(worker_key(self.namespace, worker.worker_id), encode(worker))
        return self.engines[name]

    async def frontend(self, **options: Any) -> Stack:
        """A further frontend that has seen all engines and reached NATS."""
        options.setdefault("session_wait_s", 20.0)  # that they agree must not hang on the machine's speed
        made = await self._stack.enter_async_context(
            frontend(self.etcd_server, self.nats_server, self.namespace, **options)
        )
        made.engines = self.engines
        await until(lambda: len(made.frontend.cluster.workers) == len(self.engines))
        await until(lambda: made.frontend.bus.connected and made.frontend.sharing.reached.is_set())
        return made


@pytest.fixture
async def cluster(etcd_server: EtcdServer, nats_server: NatsServer, namespace: str) -> AsyncIterator[Cluster]:
    """1P1D on the session's servers."""
    async with AsyncExitStack() as stack:
        made = Cluster(etcd_server, nats_server, namespace, stack)
        await made.register("p0", Role.PREFILL)
        await made.register("d0", Role.DECODE)
        try:
            yield made
        finally:
            await stack.aclose()
            for engine in made.engines.values():
                await engine.stop()
            await made.etcd.close()
