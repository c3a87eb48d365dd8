"""`ppd up`: a whole stack as local processes, in the foreground or, with `--detach`, in the background."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import Field

from ppd.cli import lazily, paths
from ppd.cli.model import catalog
from ppd.cli.stack.spec import PlanError, Spec
from ppd.cli.stack.state import BusyError, Lock, StateFile, busy, running
from ppd.core import policies
from ppd.core.hardware import load_profile
from ppd.core.placement import parse_placement
from ppd.runtime import engine_key, otlp
from ppd.runtime.settings import CommaList, CommandSettings, load


class UpSettings(CommandSettings):
    """Start etcd, NATS, the planner, the engines of a placement and the frontend on this machine.

    Flags after a bare `--` go to every vLLM engine untouched.
    """

    placement: str = Field("1P1D", description="engines: n prefill, m decode, k replica, such as 2P1D or 1R")
    model: str = Field(
        "", description="smollm2 (from PyPI, the default), a folder, or ORGANISATION/NAME; sim: any name"
    )
    host: str = Field("127.0.0.1", description="where the frontend listens")
    port: int = Field(8000, ge=1, le=65535, description="of the frontend")
    gpus: CommaList = Field(
        [], description="CUDA devices, shared evenly by the engines, such as 0,1,2,3; none: CPU engines"
    )
    engine: Literal["vllm", "sim"] = Field("vllm", description="vllm, or sim for simulated engines")
    hardware: str = Field("h100-llama-3.1-8b", description="what simulated engines simulate")
    policy: str = Field("", description="the frontend's routing policy; empty: its default")
    namespace: str = Field("default", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="of the cluster")
    detach: bool = Field(False, description="return once the stack serves; `ppd down` stops it")


@contextmanager
def _of(flag: str) -> Iterator[None]:
    """Raises PlanError for a value that cannot be used; the message names its flag."""
    try:
        yield
    except ValueError as error:
        raise PlanError(f"--{flag}: {error}") from None


def _model(settings: UpSettings) -> catalog.Model:
    """Raises ModelError."""
    if settings.engine == "sim":
        name = settings.model or settings.hardware
        return catalog.Model(name, name)
    return catalog.find(settings.model or catalog.DEFAULT)


def _spec(settings: UpSettings, engine_args: list[str]) -> Spec:
    """Raises PlanError for a value that no part of the stack could use."""
    if refused := engine_key.refusal(engine_args):
        raise PlanError(refused)
    with _of("placement"):
        placement = parse_placement(settings.placement)
    with _of("policy"):
        policies.make(settings.policy or policies.DEFAULT)
    if settings.engine == "sim":
        with _of("hardware"):
            load_profile(settings.hardware)
    with _of("model"):
        model = _model(settings)
    return Spec(
        placement=placement,
        model=model,
        host=settings.host,
        port=settings.port,
        engine=settings.engine,
        hardware=settings.hardware,
        gpus=tuple(settings.gpus),
        namespace=settings.namespace,
        engine_args=tuple(engine_args),
        policy=settings.policy,
    )


def _forget_own_environment() -> None:
    """PPD_PORT and the like are meant for this command: a service would take them for its own."""
    for name in UpSettings.model_fields:
        os.environ.pop(f"PPD_{name.upper()}", None)


def main(argv: list[str]) -> int:
    cut = argv.index("--") if "--" in argv else len(argv)
    settings = load(UpSettings, argv[:cut], "ppd up")
    try:
        otlp.resolve(os.environ.get("PPD_OTLP_ENDPOINT", ""))
        spec = _spec(settings, argv[cut + 1 :])
    except (PlanError, otlp.OtlpError) as error:
        print(f"ppd up: {error}", file=sys.stderr)
        return 2
    _forget_own_environment()
    folder = paths.home()
    try:
        paths.make_writable(folder)
    except OSError as error:
        where = "set PPD_HOME to a folder that can be written"
        print(f"ppd up: cannot write {folder}: {error.strerror}; {where}", file=sys.stderr)
        return 1
    lock = Lock(folder)
    try:
        # Before all that takes long: from here on `ppd down` knows that there is something to stop.
        if (other := running(folder)) is not None or not lock.take():
            raise busy(other or StateFile(folder).read())
        begin: Callable[[Spec, object, Lock, bool], int] = lazily.load("ppd.cli.stack.begin").run
        return begin(spec, folder, lock, settings.detach)
    except PlanError as error:
        print(f"ppd up: {error}", file=sys.stderr)
        return 2
    except BusyError as error:
        print(f"ppd up: {error}", file=sys.stderr)
        return 1
    finally:
        lock.release()
