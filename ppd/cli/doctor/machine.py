"""Disk, ports and limits of this machine."""

import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from ppd.cli import paths
from ppd.cli.doctor.findings import Finding, failed, not_applicable, ok, warn
from ppd.cli.doctor.model import Source, look
from ppd.cli.doctor.threads import in_thread
from ppd.cli.doctor.wanted import Requirements
from ppd.cli.stack import ports as stack_ports
from ppd.cli.stack.ports import PortError
from ppd.cli.stack.state import StackState, running
from ppd.runtime.hub import Where

_GB = 10**9
_LOGS_BYTES = 2 * _GB  # logs, and NATS' data: tables, turns, sessions
_UNKNOWN_MODEL_BYTES = 20 * _GB  # weights of a model whose size the hub does not tell


def _model_folder(wanted: Requirements) -> Path:
    """Where a download of it goes."""
    if wanted.model.packaged:
        return paths.models()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _free(folder: Path) -> tuple[int, int]:
    """Free bytes, and the file system's device number; of the nearest folder that exists."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free, folder.stat().st_dev


async def disk(
    wanted: Requirements, look: Source = look, free: Callable[[Path], tuple[int, int]] = _free
) -> Finding:
    """Free space for logs and data, and for a model that is still to be downloaded."""
    needs = {wanted.home: _LOGS_BYTES}
    if wanted.engine == "vllm":
        folder = _model_folder(wanted)
        needs[folder] = needs.get(folder, 0) + await _download_bytes(wanted, look)
    per_device: dict[int, tuple[int, int, list[str]]] = {}  # free, needed, folders
    for folder, need in needs.items():
        left, device = await in_thread(lambda folder=folder: free(folder))  # type: ignore[misc]
        _, before, folders = per_device.get(device, (0, 0, []))
        per_device[device] = (left, before + need, [*folders, str(folder)])
    lines = [f"{left / _GB:.0f} GB free at {' and '.join(names)}" for left, _, names in per_device.values()]
    details = {"free_bytes": {names[0]: left for left, _, names in per_device.values()}}
    for left, need, names in per_device.values():
        if left < need:
            return failed(
                f"{left / _GB:.1f} GB free at {' and '.join(names)}, about {need / _GB:.1f} GB are needed",
                "free some, or move it: HF_HOME for models of the hub, XDG_CACHE_HOME for others, PPD_HOME"
                " for logs and data",
                **details,
            )
    return ok(", ".join(lines), **details)


async def _download_bytes(wanted: Requirements, look: Source) -> int:
    model = wanted.model
    if model.packaged:
        return 0 if model.prepared else _GB
    found = await in_thread(lambda: look(model.source))
    return (found.weights_bytes or _UNKNOWN_MODEL_BYTES) if found.where is Where.HUB else 0


async def ports(
    wanted: Requirements,
    check: Callable[[str, int], None] = stack_ports.check,
    stack: Callable[[Path], StackState | None] = running,
) -> Finding:
    runs = stack(wanted.home)
    own = f":{port}" if runs and (port := runs.endpoint.rpartition(":")[2]) else "none"
    taken = []
    for number in wanted.ports:
        try:
            check(wanted.host, number)
        except PortError as error:
            if f":{number}" != own:
                taken.append(str(error))
    listed = ", ".join(map(str, wanted.ports))
    if taken:
        causes = [cause.partition(";")[0] for cause in taken]
        return failed(
            "; ".join(causes), "end what listens there, or choose another: `ppd up --port`, PPD_PORT"
        )
    if runs and own in [f":{number}" for number in wanted.ports]:
        return ok(f"{listed}: free, or the frontend's of the stack that runs in {wanted.home}")
    return ok(f"{listed} free on {wanted.host}")


def _limits(kind: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return -1 if hard == resource.RLIM_INFINITY else hard


async def open_files(wanted: Requirements, hard: Callable[[int], int] = _limits, needed: int = 0) -> Finding:
    """The hard limit: services raise their own soft one up to it."""
    needed = needed or _files_of_a_frontend()
    limit = hard(resource.RLIMIT_NOFILE)
    if 0 <= limit < needed:
        return warn(
            f"a process may open {limit} files, the frontend wants {needed} for all its connections",
            f"raise it: `ulimit -Hn {needed}`, LimitNOFILE= in a systemd unit, `ulimits:` in compose",
            limit=limit,
        )
    return ok(f"a process may open {'any number of' if limit < 0 else limit} files", limit=limit)


def _files_of_a_frontend() -> int:
    from controlplane.processes.serve import files_wanted
    from controlplane.settings import FrontendSettings

    fields = FrontendSettings.model_fields
    return files_wanted(fields["max_connections"].default, fields["max_running"].default)


async def locked_memory(
    wanted: Requirements,
    hard: Callable[[int], int] = _limits,
    rdma: Callable[[], bool] = lambda: Path("/dev/infiniband").is_dir(),
) -> Finding:
    """RDMA cards read memory that must not be paged out."""
    if wanted.engine == "sim" or not rdma():
        return not_applicable("there is no RDMA card (/dev/infiniband)")
    limit = hard(resource.RLIMIT_MEMLOCK)
    if limit >= 0:
        return warn(
            f"a process may lock {limit / 2**20:.0f} MiB of memory, KV over RDMA needs all of the cache",
            "`ulimit -l unlimited`, LimitMEMLOCK=infinity in a systemd unit, `memlock: -1` in compose",
        )
    return ok("a process may lock any amount of memory, for KV over RDMA")
