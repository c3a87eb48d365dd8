from pathlib import Path

import pytest

from ppd.cli.doctor import transfer
from ppd.cli.doctor.findings import Finding, Status
from ppd.cli.doctor.transfer import Read, Side, TransferError, pairs_of, route_of
from ppd.runtime.cuda import Device, Seen
from tests.unit.cli.doctor_wanted import wanted

pytestmark = pytest.mark.unit

# As UCX 1.23 writes it, shortened: to itself, then to another process, first an active message, then a read.
_LOG = """\
[1796096581.333333] [vm:17792:0]     ucp_context.c:2753 UCX  INFO  Version 1.23.0
[1796096581.370283] [vm:17792:0]   +--------+-------------+-----------------------------------+
[1796096581.370283] [vm:17792:0]   | dst self cfg#0                                           |
[1796096581.370283] [vm:17792:0]   | remote memory read by ucp_get* into host memory from host |
[1796096581.370283] [vm:17792:0]   | Range  | Description |              Config               |
[1796096581.370283] [vm:17792:0]   | 0..inf | zero-copy   | self/memory                       |
[1796096581.834071] [vm:17792:0]      ucp_worker.c:1997 UCX  INFO    dst intra-node cfg#1 rma_am(tcp/lo)
[1796096581.864309] [vm:17792:0]   | dst intra-node cfg#1                                                   |
[1796096581.864309] [vm:17792:0]   | active message by ucp_am_send* with reply flag(multi) from host memory |
[1796096581.864309] [vm:17792:0]   | 627..inf | multi-frag copy-in | tcp/lo                                 |
[1796096581.894268] [vm:17792:0]   | dst intra-node cfg#1                                             |
[1796096581.894268] [vm:17792:0]   | remote memory read by ucp_get*(multi) into host memory from host |
[1796096581.894268] [vm:17792:0]   | Range   | Description |                  Config                  |
[1796096581.894268] [vm:17792:0]   | 0..4096 | copy-out    | tcp/lo                                   |
[1796096581.894268] [vm:17792:0]   | 4097..inf | zero-copy | cma/memory                               |
"""


def test_the_transports_of_large_reads_between_processes_are_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(_LOG)
    assert route_of(log) == "cma/memory"
    log.write_text(_LOG.partition("[1796096581.834071]")[0])
    assert route_of(log) == ""
    assert route_of(tmp_path / "none") == ""


def _devices(placement: str, gpus: str = "", seen: int = 0) -> list[str]:
    pairs = pairs_of(wanted(placement, gpus, backend="cuda" if seen or gpus else "cpu"), seen)
    return [f"{p.name}:{p.device}-{d.name}:{d.device}" for p, d in pairs]


def test_each_prefill_engine_and_each_decode_engine_are_a_pair() -> None:
    assert _devices("1P3D", "0,1,2,3", 4) == ["p0:0-d0:1", "p0:0-d1:2", "p0:0-d2:3"]
    assert _devices("1P1D", "4,5,6,7", 4) == ["p0:4-d0:6"]
    assert len(_devices("2P2D", "0,1,2,3", 4)) == 4


def test_devices_that_are_not_named_are_those_that_are_seen() -> None:
    assert _devices("1P1D", seen=2) == ["p0:0-d0:1"]
    assert _devices("1P1D", seen=1) == ["p0:0-d0:0"]


def test_on_the_cpu_one_pair_is_enough_and_replicas_are_none() -> None:
    assert _devices("2P2D") == ["p0:-d0:"]
    assert _devices("4R") == []
    assert _devices("1P1D1R") == ["p0:-d0:"]


class FakeTransfers:
    """Reads between all pairs that go like this one, the last pair at half the speed."""

    def __init__(self, speed: float = 100.0, route: str = "cuda_ipc/cuda", error: str = "") -> None:
        self._speed, self._route, self._error = speed, route, error

    async def __call__(self, pairs: list[tuple[Side, Side]], size_bytes: int) -> list[Read]:
        reads = [Read(p, d, self._speed, self._route, self._error) for p, d in pairs]
        return [*reads[:-1], reads[-1]._replace(gb_per_s=self._speed / 2)]


async def _transfer(measure: object, placement: str = "1P3D", gpus: str = "0,1,2,3") -> Finding:
    async def look(devices: str) -> Seen:
        return Seen(devices=(Device("H100"),) * len(devices.split(",")))

    return await transfer.transfer(wanted(placement, gpus), measure, look)  # type: ignore[arg-type]


async def test_the_slowest_pair_is_named() -> None:
    found = await _transfer(FakeTransfers())
    assert found.status is Status.OK
    assert found.seen == (
        "50.0 GB/s VRAM to VRAM over cuda_ipc/cuda (p0 to d2, the slowest of 3 pairs), content verified"
    )
    assert [read["gb_per_s"] for read in found.details["reads"]] == [100, 100, 50]


async def test_kv_between_gpus_that_goes_over_tcp_is_a_warning() -> None:
    found = await _transfer(FakeTransfers(route="tcp/eth0"))
    assert found.status is Status.WARN
    assert "3 of 3 pairs bypass NVLink" in found.seen
    assert "pid: host" in found.do


async def test_on_the_cpu_any_transport_will_do() -> None:
    found = await _transfer(FakeTransfers(route="tcp/lo"), "1P1D", "")
    assert (found.status, found.seen) == (
        Status.OK,
        "50.0 GB/s DRAM to DRAM over tcp/lo, content verified",
    )


async def test_a_read_that_brings_something_else_fails() -> None:
    found = await _transfer(FakeTransfers(error="what arrived is not what was sent"))
    assert found.status is Status.FAILED
    assert found.seen == "p0 to d0: what arrived is not what was sent"


async def test_a_side_that_does_not_start_fails() -> None:
    async def broken(pairs: list[tuple[Side, Side]], size_bytes: int) -> list[Read]:
        raise TransferError("p0 ended: no such transport")

    found = await _transfer(broken)
    assert (found.status, found.seen) == (Status.FAILED, "p0 ended: no such transport")


async def test_replicas_exchange_nothing() -> None:
    assert (await _transfer(FakeTransfers(), "4R")).status is Status.NOT_APPLICABLE
