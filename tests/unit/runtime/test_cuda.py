"""The driver's library as a real process loads it; only the library is a fake."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ppd.runtime import cuda
from ppd.runtime.cuda import Device, Seen
from tests.support.fake_cuda import FakeCuda

pytestmark = pytest.mark.unit

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    fake = FakeCuda(tmp_path)

    def with_settings(**settings: int) -> None:
        for name, value in fake.env(**settings).items():
            monkeypatch.setenv(name, value)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return with_settings


async def test_every_device_is_listed_with_what_the_driver_says_of_it(install: Install) -> None:
    install(devices=2, version=12080, mode=3)
    seen = await cuda.look()
    assert seen.cuda == 12080
    assert [device.uuid for device in seen.devices] == ["00" * 16, "01" * 16]
    assert {(d.name, d.memory_bytes, d.mode) for d in seen.devices} == {
        ("Fake GPU", 80 * 2**30, "exclusive process")
    }


async def test_only_the_named_devices_are_seen(install: Install) -> None:
    install(devices=4)
    assert len((await cuda.look("1,3")).devices) == 2


async def test_a_named_device_that_is_not_there_is_a_problem_that_names_both(install: Install) -> None:
    install(devices=2)
    found = cuda.problem(await cuda.look("0,2"), 2, "0,2")
    assert found is not None
    assert found.seen == "devices 0,2 are named, and the driver shows 1"
    assert "nvidia-smi -L" in found.do


async def test_the_drivers_own_words_are_passed_on(install: Install) -> None:
    install(init=999)
    found = cuda.problem(await cuda.look(), 1)
    assert found is not None
    assert "said by the fake (CUDA error 999)" in found.seen


async def test_a_library_that_crashes_is_a_driver_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"\x7fELF is not all that it takes")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert cuda.problem(await cuda.look(), 1) is not None


def test_without_a_driver_the_line_says_what_a_node_and_a_container_need() -> None:
    found = cuda.problem(Seen(code=cuda.NO_LIBRARY, error="libcuda.so.1: cannot open"), 1)
    assert found is not None
    assert found.seen.startswith("no NVIDIA driver")
    assert "container toolkit" in found.do


@pytest.mark.parametrize(
    ("code", "hint"),
    [(100, "--gpus all"), (802, "nvidia-fabricmanager"), (803, "restart the node"), (46, "exclusive mode")],
)
def test_errors_that_are_known_say_what_to_do(code: int, hint: str) -> None:
    found = cuda.problem(Seen(code=code, error="x"), 1)
    assert found is not None
    assert hint in found.do


def _seen(**more: int) -> Seen:
    return Seen(devices=(Device("H100", compute_mode=more.pop("mode", 0)),), **{"cuda": 13000, **more})


def test_a_driver_older_than_the_engines_cuda_is_a_problem() -> None:
    found = cuda.problem(_seen(cuda=12080), 1, engine_cuda=13000)
    assert found is not None
    assert "up to 12.8, the engine's torch needs 13.0" in found.seen


def test_within_one_major_version_older_drivers_do() -> None:
    assert cuda.problem(_seen(cuda=13000), 1, engine_cuda=13020) is None


def test_a_prohibited_device_is_a_problem() -> None:
    assert cuda.problem(_seen(mode=2), 1) is not None
    assert cuda.problem(_seen(mode=3), 1) is None


def test_too_few_devices_for_a_tensor_parallel_engine() -> None:
    found = cuda.problem(_seen(), 2)
    assert found is not None
    assert found.seen == "2 devices are needed, and the driver shows 1"


def test_the_installed_torchs_cuda_is_read_without_importing_it() -> None:
    import sys

    before = "torch" in sys.modules
    assert cuda.torch_cuda() in range(0, 100_000)
    assert ("torch" in sys.modules) == before
