"""The report of a profile: one page with the verdicts, the figures with their spread, and what went wrong."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from planner.profile.figures import CellFigures, PathFigures
from planner.profile.records import Head, Point, Speeds
from ppd.cli.table import page, plots
from ppd.core.cells import Cell
from ppd.core.names import Route
from ppd.core.records import TableSnapshot
from ppd.core.score import SLO_CLASSES
from ppd.core.table import Table

_COLOURS = {Route.P_D: "#d7582b", Route.D_LOCAL: "#1a9850", Route.P_D_PULLBACK: "#4575b4"}


def page_of(
    head: Head,
    speeds: Speeds | None,
    points: Sequence[Point],
    found: Mapping[Cell, CellFigures],
    snapshot: TableSnapshot,
) -> str:
    body = [
        _about(head, speeds, points, found),
        page.heat_maps(Table(snapshot), dict(SLO_CLASSES)),
        "<h2>TTFT and TPOT of later turns</h2>",
        _plots(found),
        _figures(found),
        _flagged(points),
    ]
    return page.page(f"Profile of {head.model} on {head.placement}", "".join(body))


def _about(
    head: Head, speeds: Speeds | None, points: Sequence[Point], found: Mapping[Cell, CellFigures]
) -> str:
    turns = sum(len(point.samples) for point in points)
    minutes = sum(point.seconds for point in points) / 60
    text = (
        f"<p>Hardware: {escape(head.hardware)}. {len(points)} points, {turns} turns, {minutes:.1f} minutes; "
        f"conversations of {head.turns} turns, each with a beginning of its own.</p>"
    )
    if speeds is not None:
        text += (
            f"<p>At full load: {speeds.prefill_tokens_per_s:.0f} prefill tokens a second, "
            f"{speeds.decode_tokens_per_s:.0f} decoded tokens a second with {speeds.streams} streams "
            f"({speeds.step_ms:.1f} ms between tokens).</p>"
        )
    slow = sorted({(cell.qps, each.rate) for cell, each in found.items() if each.rate != cell.qps})
    if slow:
        text += (
            f"<p>The level {slow[0][0]:g} stands for every rate below it too. Where the cluster serves less, "
            f"it was measured at what it sustains: {slow[0][1]:.3g} to {slow[-1][1]:.3g} a second.</p>"
        )
    return text


def _plots(found: Mapping[Cell, CellFigures]) -> str:
    """TTFT and TPOT per cell with the spread of a turn; a word where matplotlib is missing."""
    try:
        plt = plots.pyplot()
    except plots.NoPlotsError as error:
        return f"<p>{escape(str(error))}, then --report-only.</p>"
    listed = sorted(found, key=lambda cell: cell.slot)
    figure, axes = plt.subplots(1, 2, figsize=(12, 1.5 + 0.32 * len(listed)), sharey=True)
    for axis, quantity in zip(axes, ("ttft", "tpot"), strict=True):
        _plot(axis, quantity, listed, found)
    axes[0].set_yticks(range(len(listed)), [str(cell) for cell in listed], size=8)
    axes[0].invert_yaxis()
    axes[0].legend(loc="best", fontsize=8)
    figure.tight_layout()
    return plots.svg(figure)


def _plot(axis: Any, quantity: str, listed: list[Cell], found: Mapping[Cell, CellFigures]) -> None:
    for shift, (path, colour) in enumerate(_COLOURS.items()):
        rows = [(y, found[cell].paths[path]) for y, cell in enumerate(listed) if path in found[cell].paths]
        means = [getattr(each, quantity).mean for _, each in rows]
        spread = [getattr(each, quantity).sd for _, each in rows]
        below = [min(sd, 0.9 * mean) for sd, mean in zip(spread, means, strict=True)]
        ys = [y + 0.2 * (shift - 1) for y, _ in rows]
        if rows:
            axis.errorbar(
                means, ys, xerr=[below, spread], fmt="o", ms=4, capsize=2, color=colour, label=path.value
            )
    axis.set_xscale("log")
    axis.set_xlabel(f"{quantity.upper()}, ms: mean and standard deviation of a turn")
    axis.grid(axis="x", which="both", alpha=0.25)


def _figures(found: Mapping[Cell, CellFigures]) -> str:
    head = "".join(
        f'<th scope="col">{title}</th>'
        for title in ("cell", "offered/s", "path", "TTFT, ms", "TPOT, ms", "turns", "points", "cached", "")
    )
    lines = [
        _line(cell, each.rate, path, each.paths[path])
        for cell, each in sorted(found.items(), key=lambda pair: pair[0].slot)
        for path in sorted(each.paths)
    ]
    return (
        "<h2>Figures</h2><p>Mean ± standard deviation of a turn. Cached: share of the prompt that the engine "
        f"that prefilled already held.</p><div class='wide'><table class='list'><tr>{head}</tr>"
        f"{''.join(lines)}</table></div>"
    )


def _line(cell: Cell, rate: float, path: Route, each: PathFigures) -> str:
    cached = f"{each.cached_share:.0%}" if each.cached_share >= 0 else "-"
    values = (
        f"{rate:.3g}",
        path.value,
        f"{each.ttft.mean:.1f} ± {each.ttft.sd:.1f}",
        f"{each.tpot.mean:.2f} ± {each.tpot.sd:.2f}",
        str(each.ttft.n),
        str(each.ttft.points),
        cached,
    )
    flag = '<td class="bad">saturated</td>' if each.saturated else "<td></td>"
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    return f'<tr><th scope="row">{escape(str(cell))}</th>{cells}{flag}</tr>'


def _flagged(points: Sequence[Point]) -> str:
    bad = [point for point in points if point.flag]
    if not bad:
        return "<h2>Flagged points</h2><p>None.</p>"
    lines = []
    for point in bad:
        why = next((s.error for s in point.samples if s.error), f"conversations grew × {point.growth:g}")
        lines.append(
            f"<tr><th scope='row'>{escape(point.cell)}</th><td>{point.path}</td><td>{point.rate:.3g}</td>"
            f"<td class='bad'>{point.flag}</td><td>{escape(why)}</td></tr>"
        )
    return (
        "<h2>Flagged points</h2><p>Failed ones count for nothing; saturated ones only where their path has "
        "no other.</p><div class='wide'><table class='list'><tr><th>cell</th><th>path</th><th>offered/s</th>"
        f"<th></th><th>why</th></tr>{''.join(lines)}</table></div>"
    )
