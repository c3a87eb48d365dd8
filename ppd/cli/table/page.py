"""The heat map as a page of its own: no script, no network, readable in light and dark."""

from html import escape

from ppd.cli.table import heat
from ppd.core.cells import QPS_LEVELS
from ppd.core.score import Weights
from ppd.core.table import Table

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c1c1c; --line: #d5d5d5 }
@media (prefers-color-scheme: dark) { :root { --ground: #161616; --ink: #e8e8e8; --line: #3a3a3a } }
body { background: var(--ground); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .5rem; text-align: right; white-space: nowrap } th { font-weight: 500 }
th[scope=row] { text-align: left } .heat td { min-width: 3.2rem; text-align: center;
  border: 1px solid var(--ground) } .heat td.near { font-style: italic }
.list td, .list th { border-bottom: 1px solid var(--line) } .bad { color: #c4401c }
svg { max-width: 100%; height: auto }
"""


def page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1>{body}</html>\n"
    )


def heat_maps(table: Table, classes: dict[str, Weights]) -> str:
    """One map per SLO class. Each square's tip holds its figures."""
    parts = [
        "<p>D: the turn stays on its D. P: it goes P→D. With the size of the score; in italics where nothing "
        "was measured and the nearest measured cell speaks. Columns are conversations a second.</p>"
    ]
    for name, weights in classes.items():
        found = list(heat.rows(table, weights))
        parts.append(
            f"<h2>{escape(name)}: TTFT × {weights.ttft:g}, TPOT × {weights.tpot:g}</h2>"
            f"<p>{escape(heat.share(found))}</p>{_map(found)}"
        )
    parts += [f"<p>{context}: nothing was measured.</p>" for context in heat.left_out(table)]
    return "".join(parts)


def whole(table: Table, classes: dict[str, Weights]) -> str:
    return page(heat.headline(table), heat_maps(table, classes))


def _map(found: list[heat.HeatRow]) -> str:
    head = "".join(f'<th scope="col">{qps:g}</th>' for qps in QPS_LEVELS)
    lines = [f'<tr><th scope="col">context</th><th scope="col">turn, tokens</th>{head}</tr>']
    for row in found:
        squares = "".join(_square(square) for square in row.squares)
        lines.append(
            f'<tr><th scope="row">{row.context}</th><th scope="row">{escape(row.title)}</th>{squares}</tr>'
        )
    return f'<div class="wide"><table class="heat">{"".join(lines)}</table></div>'


def _square(square: heat.Square) -> str:
    red, green, blue = heat.LOCAL if square.local else heat.REMOTE
    kind = "" if square.exact else ' class="near"'
    colour = f"rgba({red}, {green}, {blue}, {square.strength:.2f})"
    tip = escape(square.story())
    return f'<td{kind} style="background: {colour}" title="{tip}">{escape(square.label)}</td>'
