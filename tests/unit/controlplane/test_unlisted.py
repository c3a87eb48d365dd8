"""A worker whose registration is lost while its agent is well: etcd stalled for longer than a lease."""

import logging
from typing import Any, cast

import pytest

from controlplane.engines.cluster import Cluster
from controlplane.engines.pool import Pool
from ppd.core.names import Role, WorkerStatus
from ppd.core.records import WorkerLoad, WorkerRecord

pytestmark = pytest.mark.unit


class FakePool:
    heard_s, unused = 0.0, True

    def __getattr__(self, _: str) -> Any:
        return lambda *_: 0.0


def record(status: WorkerStatus = WorkerStatus.READY) -> WorkerRecord:
    return WorkerRecord(
        worker_id="d0-1", name="d0", role=Role.DECODE, model="m", url="http://d0:1", status=status
    )


@pytest.fixture
def cluster() -> Cluster:
    """With one worker, whose agent reported at 100."""
    made = Cluster(lambda _: cast(Pool, FakePool()), logging.getLogger("test"))
    made.update({"d0-1": record()}, 100.0)
    made.report(WorkerLoad(worker_id="d0-1"), 100.0)
    return made


def usable(cluster: Cluster, now_s: float) -> bool:
    return bool(cluster.ready("m", Role.DECODE, now_s))


def test_it_stays_while_its_agent_reports_and_is_listed_again(cluster: Cluster) -> None:
    worker = cluster.workers["d0-1"]
    cluster.update({}, 101.0)
    for now_s in (101.0, 102.0, 103.0):
        cluster.report(WorkerLoad(worker_id="d0-1"), now_s)
        cluster.sweep(now_s)
        assert usable(cluster, now_s)
    cluster.update({"d0-1": record()}, 104.0)
    cluster.report(WorkerLoad(worker_id="d0-1"), 140.0)
    cluster.sweep(140.0)
    assert cluster.workers["d0-1"] is worker
    assert usable(cluster, 140.0)


def test_it_goes_once_its_agent_is_silent(cluster: Cluster) -> None:
    cluster.update({}, 101.0)
    assert usable(cluster, 101.0)
    assert cluster.sweep(102.5)
    assert not usable(cluster, 102.5)
    assert not cluster.workers


def test_it_goes_after_a_while_whatever_its_agent_says(cluster: Cluster) -> None:
    cluster.update({}, 101.0)
    cluster.report(WorkerLoad(worker_id="d0-1"), 131.5)
    assert cluster.sweep(131.5)
    assert not cluster.workers


@pytest.mark.parametrize("load", [None, WorkerLoad(worker_id="d0-1", silent_s=3.0)])
def test_one_that_is_not_heard_of_or_hangs_goes_at_once(load: WorkerLoad | None) -> None:
    made = Cluster(lambda _: cast(Pool, FakePool()), logging.getLogger("test"))
    made.update({"d0-1": record()}, 100.0)
    if load is not None:
        made.report(load, 100.0)
    made.update({}, 101.0)
    assert not made.workers


def test_one_that_said_that_it_leaves_goes_at_once(cluster: Cluster) -> None:
    cluster.update({"d0-1": record(WorkerStatus.DRAINING)}, 101.0)
    cluster.update({}, 101.0)
    assert not cluster.workers
