import io

import msgspec
import psutil
import pytest
from rich.console import Console

from ppd.cli.stack.state import MemberState, Phase, StackState
from ppd.cli.status.collect import _processes, collect
from ppd.cli.status.render import show
from ppd.cli.status.report import Part, Report, TableVersion, WorkerStatusRow
from ppd.core.names import Role, WorkerStatus
from ppd.core.records import WorkerLoad, WorkerRecord

pytestmark = pytest.mark.unit

NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there


def _shown(report: Report) -> str:
    out = io.StringIO()
    show(report, Console(file=out, width=120))
    return out.getvalue()


async def test_where_nothing_runs_everything_is_said_to_be_down_or_unknown() -> None:
    dead = MemberState(name="p0", pid=2**22 + 1, started_unix_s=1, phase=Phase.READY)
    stack = StackState(stack_id="x", supervisor=dead, phase=Phase.READY, members=[dead])
    report = await collect([NOBODY], [f"nats://{NOBODY}"], "default", f"http://{NOBODY}", stack)
    assert not report.ok
    assert [(part.name, part.ok) for part in report.parts] == [
        (name, False) for name in ("etcd", "nats", "planner", "frontend", "supervisor", "p0")
    ]
    assert (report.workers, report.tables, report.sessions) == (None, None, None)
    text = _shown(report)
    assert text.count("DOWN") == 6
    assert "workers: unknown, etcd does not answer" in text
    assert "tables, sessions: unknown, NATS does not answer" in text


def test_a_worker_without_a_report_has_no_load_rather_than_none() -> None:
    def worker(name: str) -> WorkerRecord:
        return WorkerRecord(
            worker_id=f"{name}-1", name=name, role=Role.DECODE, model="m", url="", status=WorkerStatus.READY
        )

    load = WorkerLoad(worker_id="d0-1", running=3, waiting=1, kv_use=0.25, queued_prefill_tokens=700)
    report = Report(
        ok=True,
        parts=[Part(name="etcd", ok=True)],
        workers=[WorkerStatusRow(record=worker("d0"), load=load), WorkerStatusRow(record=worker("d1"))],
        tables=[TableVersion(model="m", placement="1P2D", version=7, source="online", frozen=True)],
        sessions=12,
    )
    rows = {line.split()[0]: line.split() for line in _shown(report).splitlines() if line.strip()}
    assert rows["d0-1"] == ["d0-1", "decode", "m", "ready", "3", "1", "25%", "700"]
    assert rows["d1-1"] == ["d1-1", "decode", "m", "ready", "-", "-", "-", "-"]
    assert rows["m"] == ["m", "1P2D", "7", "online,", "frozen"]
    assert rows["sessions:"] == ["sessions:", "12"]


def test_a_report_survives_json() -> None:
    report = Report(ok=False, parts=[], workers=None, tables=None, sessions=None)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_an_agent_whose_engine_is_gone_is_down() -> None:
    me = psutil.Process()
    agents = [
        MemberState(name=name, pid=me.pid, started_unix_s=me.create_time(), phase=Phase.READY)
        for name in ("p0", "d0")
    ]
    stack = StackState(stack_id="x", supervisor=agents[0], phase=Phase.READY, members=agents)
    left = WorkerRecord(
        worker_id="p0-1", name="p0", role=Role.PREFILL, model="m", url="", status=WorkerStatus.READY
    )
    parts = {part.name: part for part in _processes(stack, set(), [left])}
    assert (parts["p0"].ok, parts["p0"].detail) == (True, "ready")
    assert (parts["d0"].ok, parts["d0"].detail) == (False, "its engine is down or starts again")
    assert all(part.ok for part in _processes(stack, set(), None)), "etcd cannot be asked: nothing is known"


@pytest.mark.parametrize(("late", "up"), [(1, True), (2, False)])
async def test_an_etcd_that_answers_late_once_is_not_down(
    late: int, up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[list[WorkerRecord] | None] = [None] * late

    async def registered(*_: object) -> list[WorkerRecord] | None:
        return answers.pop(0) if answers else []

    monkeypatch.setattr("ppd.cli.status.collect.registered", registered)
    report = await collect([NOBODY], [f"nats://{NOBODY}"], "default", f"http://{NOBODY}", None)
    assert next(part.ok for part in report.parts if part.name == "etcd") is up
