"""Of many engines a turn looks at a few, and at all of them where those few cannot take it."""

import logging
from typing import Any, cast

import pytest

from controlplane.engines.cluster import Cluster
from controlplane.engines.pool import Pool
from ppd.core.names import Role, WorkerStatus
from ppd.core.records import WorkerRecord
from ppd.core.roster import CANDIDATES

pytestmark = pytest.mark.unit

MANY = 60


class FakePool:
    def close(self) -> None: ...


def engines() -> Cluster:
    made = Cluster(lambda _: cast(Pool, FakePool()), logging.getLogger("test"))
    made.update(
        {
            f"p{i}": WorkerRecord(
                worker_id=f"p{i}",
                name=f"p{i}",
                role=Role.PREFILL,
                model="m",
                url="http://127.0.0.1:1",
                status=WorkerStatus.READY,
            )
            for i in range(MANY)
        },
        0.0,
    )
    return made


def some(cluster: Cluster, but: frozenset[str] = frozenset(), reader: str = "", **wanted: Any) -> list[str]:
    model = cluster.model("m")
    assert model is not None
    found = cluster.some(model.ready[Role.PREFILL], wanted.get("wanted", ()), 1.0, but, reader)
    return [worker.id for worker in found]


def test_a_turn_looks_at_a_few_engines_and_those_it_wants() -> None:
    cluster = engines()
    assert len(some(cluster)) == CANDIDATES
    found = some(cluster, wanted=("p7", "gone"))
    assert "p7" in found
    assert len(found) <= CANDIDATES + 1


def test_the_one_engine_that_does_not_rest_is_found() -> None:
    cluster = engines()
    for worker in cluster.workers.values():
        if worker.id != "p33":
            worker.failed(0.9)
    assert some(cluster) == ["p33"]


def test_the_one_p_that_a_d_can_read_from_is_found_and_none_that_failed_the_turn() -> None:
    cluster = engines()
    for i in range(MANY):
        if i not in (5, 9):
            cluster.pairs.failed(f"p{i}", "d0", 0.9)
    for _ in range(20):
        assert some(cluster, frozenset({"p5"}), "d0") == ["p9"]


def test_where_all_rest_they_are_used_all_the_same() -> None:
    cluster = engines()
    for worker in cluster.workers.values():
        worker.failed(0.9)
    assert len(some(cluster)) >= CANDIDATES
