"""Pairs between which KV does not pass: set aside as pairs, tried again with back-off."""

import asyncio

import pytest

from controlplane.engines.pairs import Pairs
from ppd.core.names import Role
from ppd.core.records import KvMoved
from tests.support.waiting import until
from tests.unit.controlplane.conftest import P_2D, TWO_P_D, Stack, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit


def test_a_pair_rests_longer_each_time_in_a_row() -> None:
    pairs = Pairs()
    assert pairs.failed("p0", "d0", 100) == 5
    assert not pairs.usable("p0", "d0", 104.9)
    assert pairs.usable("p0", "d1", 100)
    assert pairs.usable("p1", "d0", 100)
    assert pairs.usable("p0", "d0", 105)
    assert pairs.failed("p0", "d0", 105) == 10
    assert [pairs.failed("p0", "d0", t) for t in (120, 150, 200, 300, 500, 810, 1150)] == [
        20,
        40,
        80,
        160,
        300,
        300,
        300,
    ]


def test_failures_that_were_under_way_count_once() -> None:
    pairs = Pairs()
    assert [pairs.failed("p0", "d0", 100 + i) for i in range(4)] == [5, 0, 0, 0]
    assert pairs.usable("p0", "d0", 105)


def test_a_failure_long_after_the_last_one_is_a_first_one() -> None:
    pairs = Pairs()
    assert [pairs.failed("p0", "d0", now_s) for now_s in (100, 110, 1000)] == [5, 10, 5]


def _report(stack: Stack, prefill: str, decode: str) -> None:
    stack.frontend.transfers.expect("r", f"{decode}-1")
    stack.frontend.transfers.on_moved(
        KvMoved(request_id="r", worker_id=f"{decode}-1", source_worker_id=f"{prefill}-1", error="no route")
    )


async def test_another_p_serves_a_d_that_cannot_pull_from_the_first() -> None:
    async with running(TWO_P_D) as stack:
        _report(stack, "p0", "d0")
        for i in range(4):
            assert (await stack.ask(f"question {i}"))[:2] == ("p-d", "first-turn")
        assert not stack.engines["p0"].requests
        assert len(stack.engines["p1"].requests) == 4


async def test_a_d_that_can_pull_from_nobody_prefills_and_others_are_served_as_before() -> None:
    async with running(P_2D) as stack:
        _report(stack, "p0", "d0")
        routes = {(await stack.chat(f"question {i}")).headers["x-ppd-decode"]: "" for i in range(6)}
        assert set(routes) == {"d0", "d1"}
        assert {"kv_transfer_params" in seen.body for seen in stack.engines["d0"].requests} == {False}
        assert {"kv_transfer_params" in seen.body for seen in stack.engines["d1"].requests} == {True}


async def test_a_failed_pull_back_says_nothing_of_the_way_to_d() -> None:
    async with running({"p0": Role.PREFILL, "d0": Role.DECODE}) as stack:
        stack.frontend.transfers.on_moved(
            KvMoved(request_id="r", worker_id="p0-1", source_worker_id="d0-1", direction="d-p", error="gone")
        )
        assert (await stack.ask("hi"))[0] == "p-d"


async def test_a_transfer_that_was_called_off_says_nothing_of_its_pair() -> None:
    async with running(TWO_P_D) as stack:
        stack.frontend.transfers.expect("mine", "d0-1")
        stack.frontend.transfers.called_off("mine")
        for request_id in ("mine", "of another frontend"):
            moved = KvMoved(request_id=request_id, worker_id="d0-1", source_worker_id="p0-1", error="gone")
            stack.frontend.transfers.on_moved(moved)
        workers = stack.frontend.cluster.workers
        now_s = asyncio.get_running_loop().time()
        assert stack.frontend.cluster.can_pull(workers["d0-1"], workers["p0-1"], now_s)


async def test_a_hang_up_calls_the_turns_transfer_off() -> None:
    async with running({"p0": Role.PREFILL, "d0": Role.DECODE}) as stack:
        stack.engines["d0"].faults.append(Fault("stall"))
        asked = asyncio.create_task(stack.ask("hi"))
        await until(lambda: bool(stack.engines["d0"].requests))
        request_id = stack.engines["d0"].requests[0].headers["x-request-id"]
        transfers = stack.frontend.transfers
        assert transfers.wanted(request_id, "d0-1")
        asked.cancel()
        await until(lambda: not transfers.wanted(request_id, "d0-1"))
