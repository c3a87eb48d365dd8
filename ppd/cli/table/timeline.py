"""What was learned over time: the kept versions of one table, drawn as steps."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ppd.cli.table.plots import pyplot
from ppd.core.cells import CELLS, Cell
from ppd.core.score import delta_tpot, delta_ttft, slo_classes
from ppd.core.table import Table

_MOST = 6  # cells that are drawn: those that moved most


def local_shares(tables: Sequence[Table]) -> dict[str, list[float]]:
    """Per SLO class of the newest table, the share of measured cells that are D-local in each version."""
    found: dict[str, list[float]] = {}
    for name, weights in slo_classes(tables[-1].snapshot).items():
        shares = []
        for table in tables:
            then = slo_classes(table.snapshot).get(name, weights)
            own = [each for each in table.verdicts(then.ttft, then.tpot) if each.row.exact]
            shares.append(sum(each.score > 0 for each in own) / max(1, len(own)))
        found[name] = shares
    return found


def moved(tables: Sequence[Table]) -> list[Cell]:
    """The cells whose saving of TTFT or cost in TPOT by staying on D changed most over the versions."""

    def change(cell: Cell) -> float:
        rows = [table.lookup(cell.slot) for table in tables]
        ttft = [delta_ttft(row.p_d, row.d_local) for row in rows]
        tpot = [delta_tpot(row.p_d, row.d_local) for row in rows]
        return max(ttft) - min(ttft) + max(tpot) - min(tpot)

    own = [cell for cell in CELLS if tables[-1].lookup(cell.slot).exact]
    return sorted((cell for cell in own if change(cell) > 0), key=change, reverse=True)[:_MOST]


def png(tables: Sequence[Table], path: Path) -> None:
    """Three panels under one axis of time. Raises NoPlotsError or OSError."""
    plt = pyplot()
    figure, axes = plt.subplots(3, 1, figsize=(10, 10), sharex=True)
    times = [datetime.fromtimestamp(table.snapshot.created_unix_s, UTC) for table in tables]
    for name, shares in local_shares(tables).items():
        _steps(axes[0], times, [100 * share for share in shares], name)
    axes[0].set_ylabel("measured cells\nD-local, %")
    for cell in moved(tables):
        rows = [table.lookup(cell.slot) for table in tables]
        _steps(axes[1], times, [100 * delta_ttft(row.p_d, row.d_local) for row in rows], str(cell))
        _steps(axes[2], times, [100 * delta_tpot(row.p_d, row.d_local) for row in rows], str(cell))
    axes[1].set_ylabel("TTFT saved by\nstaying on D, %")
    axes[2].set_ylabel("TPOT added by\nstaying on D, %")
    for axis in axes:
        for when, table in zip(times, tables, strict=True):
            axis.axvline(when, color="grey", alpha=0.3 if table.snapshot.source.startswith("online") else 0.8)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    newest = tables[-1]
    figure.suptitle(
        f"{newest.model} on {newest.placement}: versions {tables[0].version} to {newest.version}\n"
        "one line for each version, dark where an operator or the seed made it",
        size=10,
    )
    figure.autofmt_xdate()
    figure.savefig(path, format="png", dpi=130, bbox_inches="tight")
    plt.close(figure)


def _steps(axis: Any, times: list[datetime], values: list[float], label: str) -> None:
    axis.step(times, values, where="post", marker=".", label=label)
