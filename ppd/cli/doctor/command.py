"""`ppd doctor [--json]`."""

import asyncio
import sys
from typing import Literal

import msgspec
from pydantic import Field, field_validator
from rich.console import Console

from ppd.cli import paths
from ppd.cli.doctor.checks import CHECKS
from ppd.cli.doctor.examine import examine
from ppd.cli.doctor.findings import Check, Report, Result
from ppd.cli.doctor.show import Show
from ppd.cli.doctor.wanted import Requirements, guess_backend
from ppd.cli.model import catalog
from ppd.core.placement import parse_placement
from ppd.runtime.settings import CommaList, CommandSettings, EtcdEndpoints, NatsEndpoints, load

_NAMES = [check.name for check in CHECKS]


class DoctorSettings(CommandSettings):
    """Check whether this machine can run a stack. Exit status 0: no check failed, 1: one did.

    Takes the flags of `ppd up`; give it those that the stack will be started with.
    """

    placement: str = Field("1P1D", description="engines: n prefill, m decode, k replica, such as 2P1D or 1R")
    model: str = Field("", description="smollm2 (the default), a folder, or ORGANISATION/NAME")
    engine: Literal["vllm", "sim"] = Field("vllm", description="vllm, or sim for simulated engines")
    backend: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="what engines run on; auto: cuda with --gpus or where an NVIDIA GPU is"
    )
    gpus: CommaList = Field([], description="CUDA devices of all engines, such as 0,1,2,3; none: all")
    host: str = Field("127.0.0.1", description="where the frontend would listen")
    port: CommaList = Field(
        ["8000"], description="ports that must be free, such as 8000,3000,9090,16686 for the compose stack"
    )
    etcd: EtcdEndpoints = Field(
        [], description="etcd endpoints that run already, host:port; none: not looked at"
    )
    nats: NatsEndpoints = Field([], description="NATS servers that run already; none: not looked at")
    image: str = Field("", description="a GPU engine's image on this machine: start a container with GPUs")
    only: CommaList = Field([], description=f"of the checks: {', '.join(_NAMES)}")
    patience: float = Field(1.0, gt=0, description="multiplies the deadlines of all checks")
    json_: bool = Field(False, alias="json", description="print everything as JSON")

    @field_validator("only")
    @classmethod
    def _are_checks(cls, value: list[str]) -> list[str]:
        if unknown := set(value) - set(_NAMES):
            raise ValueError(f"there is no check {', '.join(sorted(unknown))}; there are {', '.join(_NAMES)}")
        return value

    @field_validator("port")
    @classmethod
    def _are_ports(cls, value: list[str]) -> list[str]:
        if not all(port.isdigit() and 0 < int(port) < 65536 for port in value):
            raise ValueError("write numbers from 1 to 65535")
        return value


def wanted_of(settings: DoctorSettings) -> Requirements:
    """Raises ValueError, which names the flag."""
    try:
        placement = parse_placement(settings.placement)
    except ValueError as error:
        raise ValueError(f"--placement: {error}") from None
    backend = settings.backend
    if backend == "auto":
        backend = "cuda" if settings.gpus else guess_backend()
    return Requirements(
        engine=settings.engine,
        backend=backend,
        placement=placement,
        gpus=tuple(settings.gpus),
        model=_model(settings),
        host=settings.host,
        ports=tuple(map(int, settings.port)),
        etcd=tuple(settings.etcd),
        nats=tuple(settings.nats),
        image=settings.image,
        home=paths.home(),
    )


def _model(settings: DoctorSettings) -> catalog.Model:
    """What the user named, even where it does not exist: that is the model check's finding."""
    try:
        return catalog.find(settings.model or catalog.DEFAULT)
    except catalog.ModelError:
        return catalog.Model(settings.model, settings.model)


def _begin(checks: list[Check], console: Console, quiet: bool) -> Show | None:
    return None if quiet else Show(console, [check.name for check in checks])


async def _run(
    checks: list[Check], settings: DoctorSettings, wanted: Requirements, show: Show | None
) -> Report:
    def begin(check: Check) -> None:
        if show:
            show.begin(check)

    def end(result: Result) -> None:
        if show:
            show.end(result)

    return await examine(checks, wanted, settings.patience, begin, end)


def main(argv: list[str]) -> int:
    settings = load(DoctorSettings, argv, "ppd doctor")
    try:
        wanted = wanted_of(settings)
    except ValueError as error:
        print(f"ppd doctor: {error}", file=sys.stderr)
        return 2
    checks = [check for check in CHECKS if not settings.only or check.name in settings.only]
    show = _begin(checks, Console(), settings.json_)
    report = asyncio.run(_run(checks, settings, wanted, show))
    if show:
        show.close(report)
    else:
        print(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
    return 0 if report.ok else 1
