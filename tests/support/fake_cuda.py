"""A `libcuda.so.1` that shows what a test wants, for processes that are started with its environment."""

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
"""


class FakeCuda:
    """Where the library is, and the environment that has processes load it."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        source, library = folder / "cuda.c", folder / "libcuda.so.1"
        source.write_text(_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
        self._folder = folder

    def env(self, **settings: int) -> dict[str, str]:
        """`devices`, `init`, `version`, `mode`: see above."""
        env = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
        path = os.pathsep.join([str(self._folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        return env | {"LD_LIBRARY_PATH": path}
