import resource
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp.web
import pytest

from ppd.cli.doctor import clock, machine, model, servers
from ppd.cli.doctor.clock import Offset
from ppd.cli.doctor.findings import Finding, Status
from ppd.cli.model.catalog import Model, Packaged
from ppd.cli.stack.state import MemberState, StackState
from ppd.runtime.etcd import EtcdError
from ppd.runtime.hub import Access, Where
from ppd.runtime.problem import Problem
from tests.unit.cli.doctor_wanted import wanted

pytestmark = pytest.mark.unit

GB = 10**9
HUB = Access(Where.HUB, weights_bytes=16 * GB)
CACHED = Access(Where.CACHE, "/cache", 16 * GB)


class FakeDisks:
    """The folder `/nonexistent` and all others are on file systems of their own, or all on one."""

    def __init__(self, free: int, other: int | None = None) -> None:
        self._free, self._other = free, other

    def __call__(self, folder: Path) -> tuple[int, int]:
        if self._other is None or str(folder).startswith("/nonexistent"):
            return self._free, 1
        return self._other, 2


async def test_a_model_that_is_to_be_downloaded_needs_room() -> None:
    found = await machine.disk(wanted(), lambda _: HUB, FakeDisks(20 * GB))
    assert found.status is Status.OK
    found = await machine.disk(wanted(), lambda _: HUB, FakeDisks(17 * GB))
    assert found.status is Status.FAILED
    assert "17.0 GB free" in found.seen
    assert "18.0 GB are needed" in found.seen
    assert "HF_HOME" in found.do


async def test_one_that_is_here_needs_none() -> None:
    assert (await machine.disk(wanted(), lambda _: CACHED, FakeDisks(3 * GB))).status is Status.OK


async def test_each_file_system_has_its_own_need() -> None:
    assert (await machine.disk(wanted(), lambda _: HUB, FakeDisks(3 * GB, 17 * GB))).status is Status.OK
    assert (await machine.disk(wanted(), lambda _: HUB, FakeDisks(3 * GB, 15 * GB))).status is Status.FAILED
    assert (await machine.disk(wanted(), lambda _: HUB, FakeDisks(1 * GB, 99 * GB))).status is Status.FAILED


async def test_free_space_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    found = await machine.disk(wanted(home=tmp_path / "not" / "there", engine="sim"))
    assert found.details["free_bytes"][str(tmp_path / "not" / "there")] > 0


async def test_a_port_that_is_taken_is_named_with_its_holder() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = await machine.ports(wanted(ports=(port,)))
    assert found.status is Status.FAILED
    assert f"port {port} is taken by" in found.seen
    assert "--port" in found.do


async def test_the_port_of_the_stack_that_runs_here_is_its_own() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stack = StackState(
            stack_id="x", supervisor=MemberState(name="s"), endpoint=f"http://127.0.0.1:{port}"
        )
        found = await machine.ports(wanted(ports=(port,)), stack=lambda _: stack)
    assert found.status is Status.OK
    assert "the stack that runs in" in found.seen


@pytest.mark.parametrize(("limit", "status"), [(1024, Status.WARN), (65_536, Status.OK), (-1, Status.OK)])
async def test_open_files(limit: int, status: Status) -> None:
    found = await machine.open_files(wanted(), lambda _: limit)
    assert found.status is status
    if status is Status.WARN:
        assert "may open 1024 files, the frontend wants 27648" in found.seen


async def test_locked_memory_is_for_rdma() -> None:
    assert (await machine.locked_memory(wanted(), rdma=lambda: False)).status is Status.NOT_APPLICABLE
    asked: list[int] = []

    def limited(kind: int) -> int:
        asked.append(kind)
        return 8 << 20

    found = await machine.locked_memory(wanted(), limited, lambda: True)
    assert (found.status, asked) == (Status.WARN, [resource.RLIMIT_MEMLOCK])
    assert (await machine.locked_memory(wanted(), lambda _: -1, lambda: True)).status is Status.OK


@pytest.mark.parametrize(
    ("access", "status", "seen"),
    [
        (HUB, Status.OK, "org/model can be downloaded, 16.0 GB of weights"),
        (CACHED, Status.OK, "org/model is in the cache"),
        (Access(Where.FOLDER, "/models/x"), Status.OK, "/models/x"),
        (Access(Where.UNKNOWN), Status.OK, "vLLM finds it or not"),
        (Access(Where.HUB, problem=Problem("it is gated", "set HF_TOKEN")), Status.FAILED, "it is gated"),
    ],
)
async def test_model_access(access: Access, status: Status, seen: str) -> None:
    found = await model.access(wanted(), lambda _: access)
    assert found.status is status
    assert seen in found.seen


async def test_a_packaged_model_needs_its_package() -> None:
    packaged = Model("x", "/no/such/folder", Packaged(package="no_such_package", extra="the-extra"))
    found = await model.access(wanted(model=packaged))
    assert found.status is Status.FAILED
    assert "ppd[the-extra]" in found.do


async def test_memory_for_engines_on_the_cpu() -> None:
    def access(_: str) -> Access:
        return Access(Where.FOLDER, "/m", 2**30)

    assert (await model.memory(wanted(), access, available=lambda: 8 * 2**30)).status is Status.OK
    short = await model.memory(wanted("1P3D"), access, available=lambda: 8 * 2**30)
    assert short.status is Status.WARN
    assert "8.0 GiB are free, 4 engines take about 16.0 GiB" in short.seen


def fake_servers(**answers: float | Exception) -> Callable[[str], Awaitable[float]]:
    async def ask(address: str) -> float:
        answer = answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


async def test_servers_that_nobody_named_are_not_looked_at() -> None:
    for check in (servers.etcd, servers.nats_server):
        assert (await check(wanted())).status is Status.NOT_APPLICABLE


async def test_of_several_servers_one_is_enough_to_go_on() -> None:
    down = EtcdError("etcd b cannot be reached")
    on = wanted(etcd=("a", "b"))
    both = await servers.etcd(on, fake_servers(a=0.001, b=0.002))
    assert (both.status, both.seen) == (Status.OK, "etcd answers: a in 1.0 ms, b in 2.0 ms")
    one = await servers.etcd(on, fake_servers(a=0.001, b=down))
    assert one.status is Status.WARN
    assert "etcd b cannot be reached; a in" in one.seen
    assert (await servers.etcd(on, fake_servers(a=down, b=down))).status is Status.FAILED


async def test_servers_that_do_not_run_fail_within_the_deadline() -> None:
    nobody = "127.0.0.1:9"
    assert (await servers.etcd(wanted(etcd=(nobody,)))).status is Status.FAILED
    found = await servers.nats_server(wanted(nats=(f"nats://{nobody}",)))
    assert found.status is Status.FAILED
    assert "does not answer" in found.seen


def fake_clock(offset: Offset | None) -> Callable[[str], Awaitable[Offset | None]]:
    async def ask(address: str) -> Offset | None:
        return offset

    return ask


async def _clock(offset: Offset | None, synchronized: bool | None) -> Finding:
    on = wanted(etcd=("host:2379",))
    return await clock.clock(on, lambda: synchronized, fake_clock(offset), fake_clock(None))


@pytest.mark.parametrize(
    ("offset", "synchronized", "status"),
    [
        (Offset(0.2, 0.5), True, Status.OK),
        (Offset(0.9, 0.5), None, Status.OK),
        (Offset(0.2, 0.5), False, Status.WARN),
        (Offset(-1.2, 0.5), True, Status.WARN),
        (Offset(100, 0.5), True, Status.FAILED),
        (None, True, Status.OK),
        (None, False, Status.WARN),
        (None, None, Status.NOT_APPLICABLE),
    ],
)
async def test_clock(offset: Offset | None, synchronized: bool | None, status: Status) -> None:
    assert (await _clock(offset, synchronized)).status is status


def test_an_offset_is_no_surer_than_the_answer_was_fast() -> None:
    assert clock.offset(100.0, 103.0, 100.5, 1.0) == Offset(3.25, 0.75)
    assert clock.offset(100.0, 103.0, 100.5, 1.0).surely_s == 2.5
    assert clock.offset(100.0, 100.2, 100.4, 0.0).surely_s == 0.0


async def test_the_kernel_is_asked_for_the_state_of_its_clock() -> None:
    assert clock.kernel_synchronized() in (True, False, None)


async def test_an_etcd_host_whose_clock_is_ahead_is_found_out() -> None:
    ahead = timedelta(hours=1)

    async def version(_: aiohttp.web.Request) -> aiohttp.web.Response:
        date = (datetime.now(UTC) + ahead).strftime("%a, %d %b %Y %H:%M:%S GMT")
        return aiohttp.web.json_response({}, headers={"Date": date})

    app = aiohttp.web.Application()
    app.router.add_get("/version", version)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        found = await clock.clock(wanted(etcd=(f"127.0.0.1:{port}",)), lambda: True)
    finally:
        await runner.cleanup()
    assert found.status is Status.FAILED
    assert abs(found.details["offset_s"][f"127.0.0.1:{port}"] - 3600) < 60
