"""Print as JSON what the CUDA driver shows to this process.

A process of its own, since the driver reads CUDA_VISIBLE_DEVICES once, and a broken driver may hang or crash.
"""

import ctypes
import json
from typing import Any

NO_LIBRARY = -1
_COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE


def _text(cuda: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"unknown error").decode(errors="replace")


def _device(cuda: ctypes.CDLL, number: int) -> dict[str, Any]:
    handle, memory, mode = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    name, uuid = ctypes.create_string_buffer(256), (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(handle), number)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    cuda.cuDeviceGetAttribute(ctypes.byref(mode), _COMPUTE_MODE, handle)
    cuda.cuDeviceGetUuid(ctypes.byref(uuid), handle)
    return {
        "name": name.value.decode(errors="replace"),
        "uuid": bytes(uuid).hex(),
        "memory_bytes": memory.value,
        "compute_mode": mode.value,
    }


def probe() -> dict[str, Any]:
    """The fields of `ppd.runtime.cuda.Seen`."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"code": NO_LIBRARY, "error": str(error)}
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if code:
        return {"code": code, "error": _text(cuda, code), "cuda": version.value}
    return {"cuda": version.value, "devices": [_device(cuda, number) for number in range(count.value)]}


if __name__ == "__main__":
    print(json.dumps(probe()))  # noqa: T201
