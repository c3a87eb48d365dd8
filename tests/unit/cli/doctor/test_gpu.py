import json
from pathlib import Path

import pytest

from ppd.cli.doctor import gpu, model
from ppd.cli.doctor.findings import Finding, Status
from ppd.cli.doctor.wanted import Requirements, has_nvidia_hardware
from ppd.runtime import cuda
from ppd.runtime.cuda import Device, Seen
from ppd.runtime.hub import Access, Where
from ppd.runtime.programs import Done, ProgramError
from tests.unit.cli.doctor_wanted import wanted

pytestmark = pytest.mark.unit

NO_DRIVER = Seen(code=cuda.NO_LIBRARY, error="libcuda.so.1: cannot open")


class FakeCuda:
    """A driver with that many equal devices, or with what is given."""

    def __init__(self, count: int = 4, mode: int = 0, seen: Seen | None = None) -> None:
        device = Device("NVIDIA H100", memory_bytes=80 * 2**30, compute_mode=mode)
        self._seen = seen or Seen(devices=(device,) * count, cuda=13000)
        self.asked: list[str] = []

    async def __call__(self, devices: str) -> Seen:
        self.asked.append(devices)
        return self._seen


class FakePrograms:
    """`nvidia-smi` and `docker`, by the words of their command lines."""

    def __init__(self, smi: str = "", info: object = None, container: Done | None = None) -> None:
        self._smi, self._info, self._container = smi, info, container
        self.started: list[list[str]] = []

    async def __call__(self, argv: list[str], deadline_s: float) -> Done:
        self.started.append(argv)
        if argv[0] == "nvidia-smi":
            if not self._smi:
                raise ProgramError("nvidia-smi: No such file or directory")
            return Done(0, self._smi, "")
        if argv[1] == "info":
            return Done(0, json.dumps(self._info), "") if self._info else Done(1, "", "permission denied")
        assert self._container is not None
        return self._container


def smi(count: int = 4, mig: str = "Disabled", used: int = 100) -> str:
    return "".join(f"{i}, 580.65.06, {mig}, 81559, {used if i else 100}\n" for i in range(count))


async def driver(on: Requirements, seen: FakeCuda, run: FakePrograms, torch: int = 13000) -> Finding:
    return await gpu.driver(on, seen, run, lambda: torch, lambda: True)


async def test_a_driver_is_named_with_its_cuda() -> None:
    found = await driver(wanted(gpus="0,1"), FakeCuda(), FakePrograms(smi()))
    assert (found.status, found.seen) == (Status.OK, "driver 580.65.06, CUDA up to 13.0")


async def test_a_driver_without_nvidia_smi_works_too() -> None:
    assert (await driver(wanted(gpus="0,1"), FakeCuda(), FakePrograms())).status is Status.OK


async def test_no_driver_and_an_old_one_fail_with_what_to_do() -> None:
    none = await driver(wanted(gpus="0,1"), FakeCuda(seen=NO_DRIVER), FakePrograms())
    assert none.status is Status.FAILED
    assert "container toolkit" in none.do
    old = await driver(wanted(gpus="0,1"), FakeCuda(), FakePrograms(smi()), torch=14000)
    assert old.status is Status.FAILED
    assert "CUDA 14" in old.do


async def test_a_gpu_that_is_not_used_is_mentioned() -> None:
    found = await driver(wanted(), FakeCuda(), FakePrograms())
    assert found.status is Status.NOT_APPLICABLE
    assert "--backend cuda" in found.seen


async def test_devices_are_counted_and_described() -> None:
    cuda_ = FakeCuda(4)
    found = await gpu.devices(wanted("1P3D", gpus="0,1,2,3"), cuda_, FakePrograms(smi()))
    assert (found.status, found.seen) == (Status.OK, "4 × NVIDIA H100, 80 GiB, compute mode default")
    assert cuda_.asked == ["0,1,2,3"]
    assert len(found.details["devices"]) == 4


@pytest.mark.parametrize(("gpus", "status"), [("0,1,2", Status.FAILED), ("", Status.WARN)])
async def test_devices_that_engines_cannot_share_evenly(gpus: str, status: Status) -> None:
    found = await gpu.devices(wanted("1P1D", gpus, backend="cuda"), FakeCuda(3), FakePrograms())
    assert found.status is status
    assert "3 devices cannot be shared evenly by the 2 engines of 1P1D" in found.seen


@pytest.mark.parametrize(
    ("cuda_", "text", "seen", "do"),
    [
        (FakeCuda(2), smi(2, mig="Enabled"), "MIG is on for GPU 0, 1", "-mig 0"),
        (FakeCuda(2, mode=3), smi(2), "exclusive process", "--compute-mode=DEFAULT"),
        (FakeCuda(2), smi(2, used=40_960), "in use already: GPU 1 has 40 GiB", "nvidia-smi"),
    ],
)
async def test_what_is_odd_about_devices_is_a_warning(cuda_: FakeCuda, text: str, seen: str, do: str) -> None:
    found = await gpu.devices(wanted(gpus="0,1"), cuda_, FakePrograms(text))
    assert found.status is Status.WARN
    assert seen in found.seen
    assert do in found.do


async def test_what_other_devices_do_is_not_looked_at() -> None:
    found = await gpu.devices(wanted("1R", gpus="0"), FakeCuda(1), FakePrograms(smi(2, used=40_960)))
    assert found.status is Status.OK


async def test_too_few_devices_fail() -> None:
    found = await gpu.devices(wanted(gpus="0,1"), FakeCuda(1), FakePrograms())
    assert found.status is Status.FAILED
    assert found.seen == "devices 0,1 are named, and the driver shows 1"


def found_docker(_: str) -> str:
    return "/usr/bin/docker"


CDI = [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]


@pytest.mark.parametrize(
    ("info", "status", "seen"),
    [
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, Status.OK, "by its runtime"),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": CDI}, Status.OK, "by CDI devices"),
        ({"Runtimes": {"runc": {}}}, Status.WARN, "knows no NVIDIA runtime"),
        (None, Status.WARN, "permission denied"),
    ],
)
async def test_the_container_toolkit(info: object, status: Status, seen: str) -> None:
    found = await gpu.container_toolkit(wanted(gpus="0"), FakePrograms(info=info), found_docker)
    assert found.status is status
    assert seen in found.seen


async def test_without_docker_or_gpus_there_is_no_toolkit_to_look_at() -> None:
    without = await gpu.container_toolkit(wanted(gpus="0"), FakePrograms(), lambda _: None)
    assert without.status is Status.NOT_APPLICABLE
    on_cpu = await gpu.container_toolkit(wanted(), FakePrograms(), found_docker)
    assert on_cpu.status is Status.NOT_APPLICABLE


async def test_with_an_image_a_container_has_to_see_devices() -> None:
    on = wanted(gpus="0", image="ppd/gpu")
    info = {"Runtimes": {"nvidia": {}}}
    good = FakePrograms(info=info, container=Done(0, "GPU 0: H100\nGPU 1: H100\n", ""))
    found = await gpu.container_toolkit(on, good, found_docker)
    assert found.status is Status.OK
    assert "sees 2 devices" in found.seen
    assert {"--pull", "never", "--gpus", "ppd/gpu"} <= set(good.started[-1])
    bad = FakePrograms(info=info, container=Done(125, "", "could not select device driver"))
    failed = await gpu.container_toolkit(on, bad, found_docker)
    assert failed.status is Status.FAILED
    assert "could not select device driver" in failed.seen
    assert (await gpu.container_toolkit(on, FakePrograms(info={}), found_docker)).status is Status.FAILED


def test_an_nvidia_gpu_is_known_by_the_bus(tmp_path: Path) -> None:
    def add(name: str, vendor: str, kind: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")

    add("0", "0x1af4", "0x030000")
    add("1", "0x10de", "0x068000")  # an NVSwitch
    (tmp_path / "2").mkdir()
    assert not has_nvidia_hardware(tmp_path)
    add("3", "0x10de", "0x030200")
    assert has_nvidia_hardware(tmp_path)
    assert not has_nvidia_hardware(tmp_path / "none")


@pytest.mark.parametrize(
    ("weights_gib", "status", "seen"),
    [
        (16, Status.OK, "16.0 GiB of weights on each device of 80 GiB, 58 GiB are left for KV"),
        (70, Status.WARN, "little is left for KV"),
        (140, Status.FAILED, "140.0 GiB of weights on each device of 80 GiB"),
        (0, Status.NOT_APPLICABLE, "not known"),
    ],
)
async def test_weights_have_to_fit_a_device(weights_gib: int, status: Status, seen: str) -> None:
    access = Access(Where.CACHE, weights_bytes=weights_gib * 2**30)
    found = await model.memory(wanted(gpus="0,1"), lambda _: access, FakeCuda(2))
    assert found.status is status
    assert seen in found.seen


async def test_engines_of_several_devices_share_the_weights() -> None:
    access = Access(Where.CACHE, weights_bytes=140 * 2**30)
    found = await model.memory(wanted(gpus="0,1,2,3,4,5,6,7"), lambda _: access, FakeCuda(8))
    assert found.status is Status.OK
    assert found.details["weights_bytes_per_device"] == 35 * 2**30
