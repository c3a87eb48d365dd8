"""`ppd table show`: the table as a heat map per SLO class."""

import sys
from pathlib import Path

import msgspec
from pydantic import Field
from rich.console import Console

from ppd.cli.table import page, plots, terminal
from ppd.cli.table.ask import AWAY, REFUSED, AskError, ask, says_errors
from ppd.cli.table.edits import read_table
from ppd.cli.table.where import TableSettings, read
from ppd.core import seeds
from ppd.core.records import TableSnapshot
from ppd.core.score import Weights, slo_classes
from ppd.core.table import Table


class ShowSettings(TableSettings):
    """The verdict of every cell, per SLO class.

    Of the table that serves, of an older version, of a file or of a shipped seed.
    """

    version: int = Field(0, ge=0, description="an older version; 0: the newest")
    file: Path | None = Field(None, description="a table.json instead of the planner's")
    seed: str = Field("", description=f"a shipped table instead: {', '.join(seeds.names())}")
    slo: str = Field("", description="one SLO class; empty: all")
    html: Path | None = Field(None, description="write a page to this file")
    png: Path | None = Field(None, description="write an image to this file (needs ppd[plots])")
    json_: bool = Field(False, alias="json", description="the table itself, as JSON")


@says_errors("ppd table show")
def main(argv: list[str]) -> int:
    settings = read(ShowSettings, argv, "ppd table show")
    snapshot = _snapshot(settings)
    if settings.json_:
        print(msgspec.json.format(msgspec.json.encode(snapshot), indent=1).decode())
        return 0
    table = Table(snapshot)
    classes = _classes(settings.slo, snapshot)
    try:
        if settings.html is not None:
            settings.html.write_text(page.whole(table, classes))
        if settings.png is not None:
            plots.heat_png(table, classes, settings.png)
    except (plots.NoPlotsError, OSError) as error:
        print(f"ppd table show: {error}", file=sys.stderr)
        return AWAY
    if settings.html is None and settings.png is None:
        terminal.draw(table, classes, Console())
    return 0


def _snapshot(settings: ShowSettings) -> TableSnapshot:
    """Raises AskError."""
    if settings.file is not None:
        return read_table(settings.file)
    if settings.seed:
        try:
            return seeds.load(settings.seed)
        except seeds.UnknownSeedError as error:
            raise AskError(str(error), REFUSED) from error
    answer = ask(settings, "table.get", settings.which() | {"version": settings.version})
    return msgspec.convert(answer, TableSnapshot)


def _classes(name: str, snapshot: TableSnapshot) -> dict[str, Weights]:
    """Raises AskError for a class that the table does not know."""
    classes = slo_classes(snapshot)
    if not name:
        return classes
    if name not in classes:
        raise AskError(f"there is no SLO class {name!r}; there are {', '.join(classes)}", REFUSED)
    return {name: classes[name]}
