"""What the engines report of KV, matched with turns: bytes and seconds, and parameters for a pull-back."""

import asyncio
import gc
import logging
import weakref
from typing import cast

import msgspec
import pytest
from prometheus_client import REGISTRY

from controlplane.engines.cluster import Cluster
from controlplane.engines.pool import Pool
from controlplane.engines.transfers import Transfers
from ppd.core.names import Outcome, Reason, Role, Route, WorkerStatus
from ppd.core.records import KvHeld, KvMoved, TurnRecord, WorkerLoad, WorkerRecord
from ppd.core.sessions import Mark, Session
from ppd.runtime.bus import Bus

pytestmark = pytest.mark.unit

AFTER = 77


@pytest.fixture
def transfers() -> Transfers:
    logger = logging.getLogger("test")
    return Transfers(Bus(["nats://127.0.0.1:1"], "test", logger), "default", lambda _: None, logger)


def _moved(direction: str, size_bytes: int, seconds: float, rank: int = 0) -> KvMoved:
    return KvMoved(
        request_id="r", worker_id="w", direction=direction, bytes=size_bytes, transfer_s=seconds, rank=rank
    )


def _held(worker: str = "d0-1") -> KvHeld:
    return KvHeld(request_id="r", worker_id=worker, hold_s=60, params={"remote_block_ids": [[1]]})


def _session(after: int = AFTER) -> Session:
    session = Session("s")
    session.marks = (Mark(1, after, 1, 10, 20),)
    session.decode_worker = "d0-1"
    return session


def _record() -> TurnRecord:
    return TurnRecord(
        request_id="r",
        ended_unix_s=0,
        model="m",
        placement="1P1D",
        path=Route.P_D,
        reason=Reason.FIRST_TURN,
        outcome=Outcome.OK,
    )


def test_ranks_move_together_and_directions_one_after_the_other(transfers: Transfers) -> None:
    for report in (_moved("d-p", 10, 0.2), _moved("p-d", 30, 0.5), _moved("p-d", 30, 0.4, rank=1)):
        transfers.on_moved(report)
    moved = transfers.moved_by("r")
    assert moved is not None
    assert (moved.bytes, moved.seconds) == (70, pytest.approx(0.7))


def test_a_late_report_still_counts(transfers: Transfers) -> None:
    record = _record()
    transfers.on_moved(_moved("d-p", 10, 0.2))
    transfers.closed(record)
    transfers.on_moved(_moved("p-d", 30, 0.5))
    assert (record.kv_bytes, record.kv_transfer_ms) == (40, pytest.approx(700))


@pytest.mark.parametrize("early", [True, False])
def test_held_kv_is_kept_with_its_session_whichever_comes_first(transfers: Transfers, early: bool) -> None:
    session = _session()
    if early:
        transfers.on_held(_held(), 100.0)
    transfers.expect_hold("r", session, AFTER, "d0-1")
    if not early:
        transfers.on_held(_held(), 100.0)
    assert session.pullback is not None
    assert (session.pullback.after, session.pullback.decode_worker) == (AFTER, "d0-1")
    assert 100.0 < session.pullback.expires_s < 160.0  # with a margin


async def test_a_turn_that_overtakes_the_report_waits_for_it(transfers: Transfers) -> None:
    session = _session()
    transfers.expect_hold("r", session, AFTER, "d0-1")
    asyncio.get_running_loop().call_later(0.01, transfers.on_held, _held(), 100.0)
    await transfers.until_held(session)
    assert session.pullback is not None


async def test_a_report_that_never_comes_is_waited_for_once(transfers: Transfers) -> None:
    session = _session()
    transfers.expect_hold("r", session, AFTER, "d0-1")
    await transfers.until_held(session)
    assert session.pullback is None
    await asyncio.wait_for(transfers.until_held(session), 0.001)


def test_held_kv_of_a_session_that_moved_on_is_not_kept(transfers: Transfers) -> None:
    session = _session(after=AFTER + 1)
    transfers.expect_hold("r", session, AFTER, "d0-1")
    transfers.on_held(_held(), 100.0)
    assert session.pullback is None


def test_held_kv_of_another_incarnation_is_not_kept(transfers: Transfers) -> None:
    session = _session()
    transfers.expect_hold("r", session, AFTER, "d0-1")
    transfers.on_held(_held("d0-2"), 100.0)
    assert session.pullback is None


def test_closed_turns_whose_report_never_comes_are_let_go(transfers: Transfers) -> None:
    class Record(TurnRecord, weakref=True):
        pass

    given = []
    for number in range(10_000):
        record = Record(**{**msgspec.structs.asdict(_record()), "request_id": f"r{number}"})
        given.append(weakref.ref(record))
        transfers.closed(record)
    del record
    gc.collect()
    assert sum(each() is not None for each in given) == 4_096


def test_reports_that_agents_drop_are_counted_from_the_first_load_report_on() -> None:
    cluster = Cluster(lambda _: cast(Pool, None), logging.getLogger("test"))
    cluster.update(
        {"d0-1": WorkerRecord("d0-1", "d0", Role.DECODE, "m", "http://d0:1", WorkerStatus.READY)}, 1.0
    )

    def counted() -> float:
        return REGISTRY.get_sample_value("ppd_kv_reports_dropped_total") or 0.0

    before = counted()
    for dropped in (7, 7, 9):
        cluster.report(WorkerLoad(worker_id="d0-1", dropped_reports=dropped), 1.0)
    assert counted() - before == 2
