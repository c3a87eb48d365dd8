"""The NVIDIA driver, its devices, and the container toolkit."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ppd.cli.doctor.findings import Finding, failed, failed_by, not_applicable, ok, warn
from ppd.cli.doctor.wanted import Requirements, has_nvidia_hardware
from ppd.runtime import cuda, programs
from ppd.runtime.programs import Done, ProgramError

TOOLKIT_S = 120.0  # with --image a container is started
_PROGRAM_S = 30.0
_IN_USE = 0.05  # of a device's memory; vLLM wants 92 %

Look = Callable[[str], Awaitable[cuda.Seen]]
Run = Callable[[list[str], float], Awaitable[Done]]


class GpuRow(NamedTuple):
    """One GPU as `nvidia-smi` lists it."""

    number: str
    driver: str
    mig: str
    memory_mib: int
    used_mib: int


_QUERY = "index,driver_version,mig.mode.current,memory.total,memory.used"


async def nvidia_smi(run: Run) -> list[GpuRow]:
    """Empty where it is missing or fails: CUDA itself can work without it."""
    try:
        done = await run(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], _PROGRAM_S)
    except ProgramError:
        return []
    rows = []
    for line in done.out.splitlines() if done.status == 0 else []:
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(GpuRow._fields):
            number, driver, mig, memory, used = fields
            rows.append(GpuRow(number, driver, mig, _int(memory), _int(used)))
    return rows


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _without(wanted: Requirements, hardware: bool) -> Finding:
    if wanted.engine == "sim":
        return not_applicable("simulated engines use no GPU")
    if hardware:
        return not_applicable(
            "engines would run on the CPU; `--backend cuda` looks at this machine's NVIDIA GPU"
        )
    return not_applicable("engines would run on the CPU")


async def driver(
    wanted: Requirements,
    look: Look = cuda.look,
    run: Run = programs.run,
    torch_cuda: Callable[[], int] = cuda.torch_cuda,
    hardware: Callable[[], bool] = has_nvidia_hardware,
) -> Finding:
    if not wanted.cuda:
        return _without(wanted, hardware())
    seen, rows = await asyncio.gather(look(""), nvidia_smi(run))
    if problem := cuda.problem(seen, 0, engine_cuda=torch_cuda()):
        return failed_by(problem)
    named = f"driver {rows[0].driver}" if rows else "a driver (nvidia-smi does not tell which)"
    return ok(
        f"{named}, CUDA up to {cuda.version_text(seen.cuda)}",
        driver=rows[0].driver if rows else "",
        cuda=seen.cuda,
    )


async def devices(
    wanted: Requirements,
    look: Look = cuda.look,
    run: Run = programs.run,
    hardware: Callable[[], bool] = has_nvidia_hardware,
) -> Finding:
    if not wanted.cuda:
        return _without(wanted, hardware())
    named = ",".join(wanted.gpus)
    seen, rows = await asyncio.gather(look(named), nvidia_smi(run))
    if problem := cuda.problem(seen, 1, named):
        return failed_by(problem)
    count, engines = len(seen.devices), wanted.placement.size
    kinds = Counter((device.name, device.memory_bytes, device.mode) for device in seen.devices)
    text = "; ".join(
        f"{number} × {name}, {memory / 2**30:.0f} GiB, compute mode {mode}"
        for (name, memory, mode), number in kinds.items()
    )
    details = {
        "devices": [{"name": d.name, "memory_bytes": d.memory_bytes, "mode": d.mode} for d in seen.devices]
    }
    if count < engines or count % engines:
        do = f"name a multiple of {engines} devices by --gpus, or another --placement"
        found = (
            f"{count} devices cannot be shared evenly by the {engines} engines of {wanted.placement} ({text})"
        )
        return failed(found, do, **details) if wanted.gpus else warn(found, do, **details)
    ours = [row for row in rows if not wanted.gpus or row.number in wanted.gpus]
    if mig := [row.number for row in ours if row.mig == "Enabled"]:
        return warn(
            f"{text}; MIG is on for GPU {', '.join(mig)}",
            "KV cannot move by NVLink or PCIe peer-to-peer between MIG devices: `nvidia-smi -i GPU -mig 0`",
            **details,
        )
    if any(device.compute_mode == 3 for device in seen.devices):
        return warn(
            text,
            "engines need each device to themselves; else `nvidia-smi --compute-mode=DEFAULT`",
            **details,
        )
    if used := [
        f"GPU {row.number} has {row.used_mib / 1024:.0f} GiB"
        for row in ours
        if row.used_mib > _IN_USE * row.memory_mib
    ]:
        return warn(
            f"{text}; in use already: {', '.join(used)}",
            "end the processes that `nvidia-smi` shows",
            **details,
        )
    return ok(text, **details)


async def container_toolkit(
    wanted: Requirements, run: Run = programs.run, which: Callable[[str], str | None] = shutil.which
) -> Finding:
    """Only containers need it, so that its absence is a warning unless an image is to be tried."""
    if not wanted.cuda:
        return not_applicable("only containers with GPUs need it")
    if which("docker") is None:
        return not_applicable("Docker is not installed here; only containers with GPUs need it")
    problem = failed if wanted.image else warn
    try:
        done = await run(["docker", "info", "--format", "{{json .}}"], _PROGRAM_S)
        info = json.loads(done.out)
    except ProgramError as error:
        return problem(f"Docker does not answer: {error}", "start it: `systemctl start docker`")
    except ValueError:
        return problem(
            f"Docker cannot be asked: {done.last_line}", "start it, or add this user to the group docker"
        )
    how = "its runtime" if "nvidia" in (info.get("Runtimes") or {}) else ""
    if any("nvidia.com/gpu" in str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or []):
        how = how or "CDI devices"
    if not how:
        return problem(
            f"Docker {info.get('ServerVersion', '')} knows no NVIDIA runtime",
            "install the NVIDIA container toolkit, then `nvidia-ctk runtime configure --runtime=docker` and"
            " restart Docker",
        )
    found = f"Docker {info.get('ServerVersion', '')} knows NVIDIA's GPUs by {how}"
    return await _container(wanted.image, found, run) if wanted.image else ok(found)


async def _container(image: str, found: str, run: Run) -> Finding:
    """Start one with all GPUs. The image has to be here: this must not download gigabytes."""
    argv = ["docker", "run", "--rm", "--pull", "never", "--gpus", "all", "--network", "none"]
    try:
        done = await run([*argv, "--entrypoint", "nvidia-smi", image, "-L"], TOOLKIT_S - _PROGRAM_S)
    except ProgramError as error:
        return failed(f"a container with GPUs does not run: {error}", "see Docker's log")
    if done.status != 0:
        return failed(
            f"a container of {image} with GPUs does not run: {done.last_line}",
            "build or pull the image; `nvidia-ctk runtime configure --runtime=docker` sets the toolkit up",
        )
    return ok(f"{found}; a container of {image} sees {len(done.out.strip().splitlines())} devices")
