"""The libraries of a driver that shows what a test wants, for processes started with their environment.

They show devices and compute nothing: a context, memory and kernels are refused.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# By FAKE_CUDA_… in the environment: the code of cuInit, the number of devices, driver version, compute mode.
# As in the real one, CUDA_VISIBLE_DEVICES ends at the first device that there is not.
_SOURCE = r"""
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}
int cuDriverGetVersion(int *version) { *version = number("FAKE_CUDA_VERSION", 13000); return 0; }
int cuInit(unsigned flags) { return number("FAKE_CUDA_INIT", 0); }
int cuGetErrorString(int code, const char **text) { *text = "said by the fake"; return 0; }
int cuDeviceGetCount(int *count) {
  int have = number("FAKE_CUDA_DEVICES", 1);
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  *count = have;
  if (visible) {
    char *copy = strdup(visible), *rest = copy, *one;
    for (*count = 0; (one = strsep(&rest, ",")) && *one && atoi(one) < have; ) ++*count;
    free(copy);
    if (!*count) return 100;
  }
  return have ? 0 : 100;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Fake GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 80ull << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 20 ? number("FAKE_CUDA_MODE", 0) : -1;
  return 0;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) { memset(uuid, device, 16); return 0; }
#define REFUSED(name) int name(void) { return 999; }
REFUSED(cuGetProcAddress_v2) REFUSED(cuPointerGetAttribute) REFUSED(cuTensorMapEncodeTiled)
REFUSED(cuCtxGetCurrent) REFUSED(cuCtxSetCurrent) REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuMemAddressFree) REFUSED(cuMemAddressReserve) REFUSED(cuMemCreate) REFUSED(cuMemMap)
REFUSED(cuMemGetAllocationGranularity) REFUSED(cuMemRelease) REFUSED(cuMemSetAccess) REFUSED(cuMemUnmap)
"""

# vLLM chooses its platform by NVML. Compute capability 8.0: with 9.0 vLLM 0.32 imports kernels that need
# Triton, and with it a device that works.
_NVML = r"""
#include <stdio.h>
#include <stdlib.h>
typedef struct { unsigned long long total, free, used; } memory_t;
static unsigned devices(void) {
  const char *text = getenv("FAKE_CUDA_DEVICES");
  return text ? atoi(text) : 1;
}
int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "said by the fake"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = devices(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(size_t)(index + 1);
  return index < devices() ? 0 : 2;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  *major = 8;
  *minor = 0;
  return 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  snprintf(name, length, "Fake GPU");
  return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
  snprintf(uuid, length, "GPU-%zu", (size_t)device);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
  memory->total = memory->free = 80ull << 30;
  memory->used = 0;
  return 0;
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.0"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlDeviceGetP2PStatus(void *one, void *other, int kind, int *status) { *status = 0; return 0; }
"""


class FakeCuda:
    """Where the libraries are, and the environment that has processes load them."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        for name, text in (("libcuda.so.1", _SOURCE), ("libnvidia-ml.so.1", _NVML)):
            source = folder / f"{name}.c"
            source.write_text(text)
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-o", folder / name, source], check=True, timeout=60
            )
        folder.chmod(0o755)  # a container's user has to read it
        self._folder = folder

    def env(self, **settings: int) -> dict[str, str]:
        """`devices`, `init`, `version`, `mode`: see above."""
        env = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
        path = os.pathsep.join([str(self._folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        return env | {"LD_LIBRARY_PATH": path}
