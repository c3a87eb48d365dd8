"""The agent's end of the connector's socket."""

import logging

import pytest

from ppd.core.records import KvMoved
from ppd.runtime.bus import Bus
from workers import receiver
from workers.receiver import ReportReceiver
from workers.reports import pack

pytestmark = pytest.mark.unit


async def test_reports_that_nobody_takes_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_WAITING", 10)
    logger = logging.getLogger("test")
    reports = ReportReceiver("default", Bus(["nats://127.0.0.1:1"], "test", logger), logger)
    for number in range(15):
        reports.datagram_received(pack(KvMoved(request_id=f"r{number}", worker_id="w")), None)
    assert reports.dropped == 5
    reports.datagram_received(b"no report", None)
    assert reports.dropped == 6
