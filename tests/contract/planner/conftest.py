"""Planners as processes, and clients of the servers that they use."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from tests.support.planners import PlannerProcess
from tests.support.servers import EtcdServer, NatsServer


@pytest.fixture
def start_planner(
    tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer, namespace: str
) -> Iterator[Callable[..., PlannerProcess]]:
    """Starts planners on the session's servers; kills those that are left."""
    started: list[PlannerProcess] = []

    def start(*flags: str, etcd: str = etcd_server.address, nats: str = nats_server.url) -> PlannerProcess:
        started.append(PlannerProcess(tmp_path / f"planner{len(started)}", etcd, nats, namespace, *flags))
        return started[-1]

    yield start
    for planner in started:
        planner.kill()


@pytest.fixture
async def etcd(etcd_server: EtcdServer) -> AsyncIterator[Etcd]:
    client = Etcd([etcd_server.address])
    yield client
    await client.close()


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    client = Bus([nats_server.url], "test")
    await client.connect()
    yield client
    await client.close()
