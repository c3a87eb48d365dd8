"""`ppd table history` and `ppd table diff`: which versions there are, and what changed between two."""

import time
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field
from pydantic_settings import CliPositionalArg
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from ppd.cli.table import timeline
from ppd.cli.table.ask import AWAY, AskError, ask, says_errors
from ppd.cli.table.plots import NoPlotsError
from ppd.cli.table.where import TableSettings, read
from ppd.core.records import TableSnapshot
from ppd.core.table import Table

_MANY = 40  # lines of a list, unless --all


class HistorySettings(TableSettings):
    """The versions that are kept, oldest first: any of them can be shown, compared and rolled back to."""

    png: Path | None = Field(None, description="draw what was learned over time (needs ppd[plots])")
    json_: bool = Field(False, alias="json", description="as JSON")


class DiffSettings(TableSettings):
    """Verdicts that changed, and figures that moved by more than 1 %."""

    from_version: CliPositionalArg[int] = Field(0, ge=0, description="0: the one before the other")
    to_version: CliPositionalArg[int] = Field(0, ge=0, description="0: the newest")
    all_: bool = Field(False, alias="all", description="every line, however many")
    json_: bool = Field(False, alias="json", description="as JSON")


def _json(answer: Any) -> int:
    print(msgspec.json.format(msgspec.json.encode(answer), indent=1).decode())
    return 0


def _grid(*columns: str) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        grid.add_column(column)
    return grid


@says_errors("ppd table history")
def history(argv: list[str]) -> int:
    settings = read(HistorySettings, argv, "ppd table history")
    kept = ask(settings, "table.history", settings.which())
    if settings.png is not None:
        return _draw(settings, [each["version"] for each in kept], settings.png)
    if settings.json_:
        return _json(kept)
    grid = _grid("version", "published (UTC)", "", "source")
    for each in kept:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(each["created_unix_s"]))
        grid.add_row(str(each["version"]), when, "frozen" if each["frozen"] else "", each["source"])
    Console(soft_wrap=True).print(grid)
    return 0


def _draw(settings: HistorySettings, versions: list[int], path: Path) -> int:
    tables = []
    for version in versions:
        answer = ask(settings, "table.get", settings.which() | {"version": version})
        tables.append(Table(msgspec.convert(answer, TableSnapshot)))
    try:
        timeline.png(tables, path)
    except (NoPlotsError, OSError) as error:
        raise AskError(str(error), AWAY) from error
    return 0


@says_errors("ppd table diff")
def diff(argv: list[str]) -> int:
    settings = read(DiffSettings, argv, "ppd table diff")
    versions = {"from": settings.from_version, "to": settings.to_version}
    answer = ask(settings, "table.diff", settings.which() | versions)
    if settings.json_:
        return _json(answer)
    most = 10**9 if settings.all_ else _MANY
    console = Console(soft_wrap=True)
    for end in ("from", "to"):
        console.print(f"version {answer[end]}: {answer[f'source_{end}']}", highlight=False)
    if answer["weights_from"] != answer["weights_to"]:
        console.print(f"weights: {answer['weights_from']} -> {answer['weights_to']}", highlight=False)
    _verdicts(answer["verdicts"], most, console)
    _figures(answer["figures"], most, console)
    return 0


def _verdicts(changed: list[dict[str, Any]], most: int, console: Console) -> None:
    console.print(f"\n{len(changed)} verdicts changed")
    if changed:
        grid = _grid("cell", "SLO class", "verdict", "score")
        for each in changed[:most]:
            scores = f"{each['score_from']:+.3f} -> {each['score_to']:+.3f}"
            grid.add_row(each["cell"], each["slo_class"], f"{each['from']} -> {each['to']}", scores)
        console.print(grid)
        _rest(changed, most, console)


def _figures(moved: list[dict[str, Any]], most: int, console: Console) -> None:
    console.print(f"\n{len(moved)} figures moved")
    if moved:
        grid = _grid("cell", "path", "TTFT, ms", "TPOT, ms")
        for each in moved[:most]:
            grid.add_row(each["cell"], each["path"], _pair(each["ttft_ms"]), _pair(each["tpot_ms"]))
        console.print(grid)
        _rest(moved, most, console)


def _rest(listed: list[dict[str, Any]], most: int, console: Console) -> None:
    if len(listed) > most:
        console.print(f"and {len(listed) - most} more; --all shows them")


def _pair(values: list[float | None]) -> str:
    before, after = values
    return f"{before:.4g} -> {after:.4g}" if before is not None else f"new: {after:.4g}"
