"""Which CUDA devices an engine would see, and what keeps it from using them."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import msgspec

from ppd.runtime import programs
from ppd.runtime.cuda_probe import NO_LIBRARY
from ppd.runtime.problem import Problem

LOOK_S = 30.0  # a driver without persistence mode initializes each device first: seconds per device
_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive process"}

_NO_DEVICE = 100
_UNAVAILABLE = 46
_NOT_READY = 802
_DRIVER_MISMATCH = (803, 804)


class Device(msgspec.Struct, frozen=True):
    name: str
    uuid: str = ""
    memory_bytes: int = 0
    compute_mode: int = 0

    @property
    def mode(self) -> str:
        return _MODES.get(self.compute_mode, f"compute mode {self.compute_mode}")


class Seen(msgspec.Struct, frozen=True):
    """What the driver shows. `code` and `error` are the driver's own where it shows nothing."""

    devices: tuple[Device, ...] = ()
    cuda: int = 0  # the newest CUDA that the driver supports, as 13000; 0: unknown
    code: int = 0  # 0: it works; NO_LIBRARY: there is no driver; else CUDA's error code
    error: str = ""


async def look(devices: str = "", deadline_s: float = LOOK_S) -> Seen:
    """What a process sees whose CUDA_VISIBLE_DEVICES is `devices`; empty: as in this environment.

    Raises ProgramError if the driver does not answer in time.
    """
    env = dict(os.environ)
    if devices:
        env["CUDA_VISIBLE_DEVICES"] = devices
    done = await programs.run([sys.executable, "-m", "ppd.runtime.cuda_probe"], deadline_s, env)
    try:
        return msgspec.json.decode(done.out, type=Seen)
    except msgspec.DecodeError:
        return Seen(code=-2, error=f"the driver's library crashed: {done.last_line}")


def problem(seen: Seen, needed: int, devices: str = "", engine_cuda: int = 0) -> Problem | None:
    """Why an engine that needs `needed` of `devices` cannot start; None: nothing is in its way.

    `devices`: its CUDA_VISIBLE_DEVICES; `engine_cuda`: the CUDA that its torch is built for, as 13000.
    """
    if seen.code:
        return _no_devices(seen, devices)
    named = len([device for device in devices.split(",") if device.strip()])
    count = len(seen.devices)
    if count < max(needed, named):
        what = f"devices {devices} are named" if named else f"{needed} devices are needed"
        return Problem(
            f"{what}, and the driver shows {count}",
            "`nvidia-smi -L` lists what the node has; name those, or give a container all (`--gpus all`)",
        )
    if seen.cuda and engine_cuda // 1000 > seen.cuda // 1000:
        return Problem(
            f"the NVIDIA driver supports CUDA up to {version_text(seen.cuda)}, the engine's torch needs"
            f" {version_text(engine_cuda)}",
            f"install a driver for CUDA {engine_cuda // 1000} on the node",
        )
    prohibited = [device.name for device in seen.devices if device.compute_mode == 2]
    if prohibited:
        return Problem(
            f"compute mode prohibited on {', '.join(prohibited)}", "run `nvidia-smi --compute-mode=DEFAULT`"
        )
    return None


def _no_devices(seen: Seen, devices: str) -> Problem:
    if seen.code == NO_LIBRARY:
        return Problem(
            f"no NVIDIA driver ({seen.error})",
            "install it on the node (`nvidia-smi` must list the devices); a container also needs the NVIDIA"
            " container toolkit and `--gpus all`",
        )
    if seen.code == _NO_DEVICE:
        of = f" of CUDA_VISIBLE_DEVICES={devices}" if devices else ""
        return Problem(
            f"the NVIDIA driver shows no device{of}",
            "name devices that `nvidia-smi -L` lists, and give a container all (`--gpus all`)",
        )
    said = f"the NVIDIA driver fails: {seen.error} (CUDA error {seen.code})"
    if seen.code == _NOT_READY:
        return Problem(
            said, "start the fabric manager of NVSwitch nodes: `systemctl start nvidia-fabricmanager`"
        )
    if seen.code in _DRIVER_MISMATCH:
        return Problem(
            said, "driver library and kernel module differ: restart the node after a driver update"
        )
    if seen.code == _UNAVAILABLE:
        return Problem(said, "another process has the device in exclusive mode: `nvidia-smi` shows which")
    return Problem(said, "see `nvidia-smi` and the kernel's log (`dmesg | grep -i nvrm`) on the node")


def torch_cuda() -> int:
    """The CUDA that the installed torch is built for, as 13000, without importing it; 0: none or unknown."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        try:
            text = (Path(folder) / "version.py").read_text()
        except OSError:
            continue
        if found := re.search(r"^cuda\b.*= *'(\d+)\.(\d+)", text, re.MULTILINE):
            return int(found[1]) * 1000 + int(found[2]) * 10
    return 0


def version_text(cuda: int) -> str:
    return f"{cuda // 1000}.{cuda % 1000 // 10}"
