"""Small real processes in place of services, for tests of the supervisor."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ppd.cli.model.catalog import Model
from ppd.cli.stack import plan
from ppd.cli.stack.spec import Spec
from ppd.core.placement import parse_placement

# Says that it runs, ends on SIGTERM and says that too; with `slow`, only after ten minutes.
_SERVICE = """
import pathlib, signal, sys, time
name, folder, slow = sys.argv[1], pathlib.Path(sys.argv[2]), "slow" in sys.argv[3:]
def say(what):
    with (folder / "events").open("a") as events:
        events.write(f"{what} {name}\\n")
def end(*_):
    if slow:
        time.sleep(600)
    say("ended")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
say("began")
(folder / name).touch()
print("serving", flush=True)
while True:
    time.sleep(60)
"""
_FAILING = "print('the disk is full', flush=True); raise SystemExit(3)"


def _touched(path: Path) -> Callable[[float], Awaitable[bool]]:
    def touched(since_unix_s: float) -> bool:
        return path.exists() and path.stat().st_mtime >= since_unix_s - 0.1

    async def ready(since_unix_s: float) -> bool:
        return touched(since_unix_s)

    return ready


async def never(_: float) -> bool:
    return False


def service(name: str, kind: plan.Kind, folder: Path, *, slow: bool = False) -> plan.Member:
    argv = (sys.executable, "-c", _SERVICE, name, str(folder), *(["slow"] if slow else []))
    within_s = 600 if slow else 10
    return plan.Member(name, kind, argv, "it serves", _touched(folder / name), stop_within_s=within_s)


def failing(name: str, kind: plan.Kind) -> plan.Member:
    return plan.Member(name, kind, (sys.executable, "-c", _FAILING), "it serves", never)


def events(folder: Path) -> list[str]:
    file = folder / "events"
    return file.read_text().splitlines() if file.exists() else []


def spec(port: int) -> Spec:
    return Spec(
        placement=parse_placement("1P1D"),
        model=Model("m", "org/m"),
        host="127.0.0.1",
        port=port,
        engine="vllm",
        hardware="",
        gpus=(),
        namespace="default",
        engine_args=(),
        policy="",
    )


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
