"""The heat map in a terminal. It can be read without colours too: D and P are letters."""

from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from ppd.cli.table import heat
from ppd.core.cells import QPS_LEVELS
from ppd.core.score import Weights
from ppd.core.table import Table

_GROUND = (40, 40, 40)


def draw(table: Table, classes: dict[str, Weights], console: Console) -> None:
    console.print(Text(heat.headline(table), style="bold"))
    for name, weights in classes.items():
        found = list(heat.rows(table, weights))
        console.print(
            f"\n{name}: TTFT × {weights.ttft:g}, TPOT × {weights.tpot:g}; {heat.share(found)}",
            highlight=False,
        )
        console.print(_grid(found))
    console.print(
        "\nRows: turns by tokens in→out. Columns: conversations a second.\n"
        "D = stays on its D, P = goes P→D, with the size of the score; lower case: not measured there, the "
        "nearest measured cell speaks for it.",
        highlight=False,
    )
    for context in heat.left_out(table):
        console.print(f"{context}: nothing was measured; the nearest cells of another context speak for it")


def _grid(found: list[heat.HeatRow]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0))
    grid.add_column("", no_wrap=True)
    for qps in QPS_LEVELS:
        grid.add_column(f"{qps:g}", justify="center", no_wrap=True, width=5)
    for context, group in groupby(found, key=lambda row: row.context):
        grid.add_row(Text(f"{context} context", style="bold"))
        for row in group:
            grid.add_row(f"{row.title} ", *(_square(square) for square in row.squares))
    return grid


def _square(square: heat.Square) -> Text:
    red, green, blue = square.colour(_GROUND)
    style = f"{'white' if square.exact else 'grey62'} on rgb({red},{green},{blue})"
    return Text(f"{square.label:^5}", style=style)
