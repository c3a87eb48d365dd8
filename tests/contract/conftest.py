"""Fixtures: real etcd and NATS. `etcd_server` and `nats_server` are shared by a session; `fresh_*` not."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers import EtcdServer, NatsServer

_numbers = itertools.count()


@pytest.fixture(scope="session")
def _session_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def _session_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()


@pytest.fixture
def etcd_server(_session_etcd: EtcdServer) -> EtcdServer:
    """The session's etcd, running, whatever the test before did to it; use `namespace` to be alone in it."""
    if not _session_etcd.running:
        _session_etcd.start()
    return _session_etcd


@pytest.fixture
def nats_server(_session_nats: NatsServer) -> NatsServer:
    """The session's NATS with JetStream, running; use `namespace` to be alone in it."""
    if not _session_nats.running:
        _session_nats.start()
    return _session_nats


@pytest.fixture
def fresh_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """An etcd of the test's own, not started yet."""
    server = EtcdServer(tmp_path / "etcd")
    yield server
    server.kill()


@pytest.fixture
def fresh_nats(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    """Makes a NATS server of the test's own, with further lines of configuration; not started yet."""
    made: list[NatsServer] = []

    def make(*options: str) -> NatsServer:
        made.append(NatsServer(tmp_path / f"nats{len(made)}", options))
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test of this session uses."""
    return f"t{os.getpid()}-{next(_numbers)}"
