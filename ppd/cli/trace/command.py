"""`ppd trace ID`, `ppd trace --session S`, `ppd trace --slowest N`."""

import asyncio
import re
import sys

from pydantic import Field
from rich.console import Console

from ppd.cli.trace.draw import draw, list_turns
from ppd.cli.trace.jaeger import Jaeger, JaegerError
from ppd.cli.trace.tree import TracedTurn, build
from ppd.runtime.settings import CommandSettings, load

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class TraceSettings(CommandSettings):
    """Draw turns that Jaeger recorded: `ppd trace ID` one, by the `x-trace-id` of its answer."""

    jaeger: str = Field("http://127.0.0.1:16686", description="URL of Jaeger")
    session: str = Field("", description="all turns of this session, in order")
    slowest: int = Field(0, ge=0, le=100, description="how many of the slowest turns to list")
    since: str = Field(
        "1h", pattern=r"^[1-9][0-9]{0,5}[smhd]$", description="how far back to search: 30m, 2h, 1d"
    )
    service: str = Field("ppd-frontend", description="the service whose traces are searched")


def _words(argv: list[str]) -> tuple[list[str], list[str]]:
    """The trace ids that lead `argv`, and the flags after them."""
    flags = next((i for i, arg in enumerate(argv) if arg.startswith("-")), len(argv))
    return argv[:flags], argv[flags:]


def main(argv: list[str]) -> int:
    ids, flags = _words(argv)
    settings = load(TraceSettings, flags, "ppd trace")
    if sum((bool(ids), bool(settings.session), bool(settings.slowest))) != 1:
        print(
            "ppd trace: give one of a trace's id, --session and --slowest (ids come first)", file=sys.stderr
        )
        return 2
    if wrong := [each for each in ids if not re.fullmatch(r"[0-9a-fA-F]{1,32}", each)]:
        print(f"ppd trace: {wrong[0]!r} is no trace id: up to 32 hexadecimal digits", file=sys.stderr)
        return 2
    try:
        turns = asyncio.run(_find(settings, ids))
    except JaegerError as error:
        print(f"ppd trace: {error}", file=sys.stderr)
        return 1
    if not turns:
        what = f"of session {settings.session} " if settings.session else ""
        print(f"ppd trace: no turn {what}in the last {settings.since}", file=sys.stderr)
        return 1
    console = Console()
    if len(turns) > 1:
        list_turns(turns, console)
    for turn in turns:
        draw(turn, console)
    return 0


async def _find(settings: TraceSettings, ids: list[str]) -> list[TracedTurn]:
    """Raises JaegerError."""
    async with Jaeger(settings.jaeger) as jaeger:
        if ids:
            return [build(await jaeger.trace(each)) for each in ids]
        tags = {"ppd.session": settings.session} if settings.session else {}
        since_s = int(settings.since[:-1]) * _SECONDS[settings.since[-1]]
        turns = [build(each) for each in await jaeger.search(settings.service, tags, since_s) if each.spans]
    if settings.session:
        return sorted(turns, key=lambda turn: turn.root.start_us)
    return sorted(turns, key=lambda turn: -turn.root.duration_us)[: settings.slowest]
