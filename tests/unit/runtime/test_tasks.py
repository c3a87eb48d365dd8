"""Supervised tasks come back after a failure, are counted, and end when asked."""

import asyncio
import logging
from itertools import islice

import pytest

from ppd.runtime.bus import BusError
from ppd.runtime.etcd import EtcdError
from ppd.runtime.tasks import FAILURES, Supervisor, backoff_s

pytestmark = pytest.mark.unit


async def test_a_failing_task_is_started_again_and_counted(caplog):
    supervisor = Supervisor(logging.getLogger("test"))
    runs = asyncio.Semaphore(0)

    async def fails():
        runs.release()
        raise ValueError("boom")

    before = FAILURES.labels("fails")._value.get()
    supervisor.start("fails", fails)
    for _ in range(3):
        await asyncio.wait_for(runs.acquire(), 10)
    await supervisor.close()
    assert FAILURES.labels("fails")._value.get() >= before + 2
    assert "boom" in caplog.text


async def test_close_cancels_and_a_name_is_unique():
    supervisor = Supervisor(logging.getLogger("test"))
    ended = asyncio.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    supervisor.start("one", forever)
    with pytest.raises(ValueError, match="one"):
        supervisor.start("one", forever)
    await asyncio.sleep(0)
    await supervisor.close()
    assert ended.is_set()


def test_backoff_grows_to_its_bound_with_jitter():
    waits = list(islice(backoff_s(), 20))
    assert all(0.1 <= wait <= 10 for wait in waits)
    assert all(5 <= wait <= 10 for wait in waits[8:])
    assert len(set(waits[8:])) > 1


async def test_close_ends_a_task_that_swallows_a_cancellation():
    supervisor = Supervisor(logging.getLogger("test"))
    swallowed = asyncio.Event()

    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if swallowed.is_set():
                raise
            swallowed.set()

    supervisor.start("stubborn", stubborn)
    await asyncio.sleep(0)
    task = supervisor._tasks["stubborn"]
    await supervisor.close()
    assert swallowed.is_set()
    assert task.done()


@pytest.mark.parametrize(
    ("error", "traced"), [(BusError("away"), False), (EtcdError("away"), False), (ValueError("bug"), True)]
)
async def test_an_outage_is_a_line_and_a_bug_a_traceback(caplog, error, traced):
    supervisor = Supervisor(logging.getLogger("test"))

    async def fails():
        raise error

    supervisor.start("fails", fails)
    await asyncio.sleep(0.05)
    await supervisor.close()
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) == traced
