"""matplotlib, where it is installed: it is an extra, since a server needs no plots."""

from io import StringIO
from pathlib import Path
from typing import Any

from ppd.cli.table import heat
from ppd.core.cells import QPS_LEVELS
from ppd.core.score import Weights
from ppd.core.table import Table

_WHITE = (255, 255, 255)
HOW = "plots need matplotlib: pip install 'ppd[plots]'"


class NoPlotsError(RuntimeError):
    """matplotlib is missing; the message says how to get it."""


def pyplot() -> Any:
    """matplotlib's pyplot, without a display. Raises NoPlotsError."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise NoPlotsError(HOW) from error
    return plt


def svg(figure: Any) -> str:
    """As an element to put into a page; the figure is closed."""
    out = StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight")
    pyplot().close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def heat_png(table: Table, classes: dict[str, Weights], path: Path) -> None:
    """One heat map per SLO class, side by side. Raises NoPlotsError or OSError."""
    plt = pyplot()
    maps = {name: list(heat.rows(table, weights)) for name, weights in classes.items()}
    height = max(len(found) for found in maps.values())
    figure, axes = plt.subplots(
        1, len(maps), figsize=(1 + 5.5 * len(maps), 1.5 + 0.3 * height), squeeze=False, sharey=True
    )
    for axis, (name, found) in zip(axes[0], maps.items(), strict=True):
        _map(axis, found)
        weights = classes[name]
        axis.set_title(
            f"{name} (TTFT × {weights.ttft:g}, TPOT × {weights.tpot:g})\n{heat.share(found)}", size=9
        )
    figure.suptitle(heat.headline(table), size=10)
    figure.text(
        0.5, 0.01, "conversations a second; D stays on D, P goes P→D; small: not measured", ha="center"
    )
    figure.tight_layout(rect=(0, 0.03, 1, 0.98))
    figure.savefig(path, format="png", dpi=130)
    plt.close(figure)


def _map(axis: Any, found: list[heat.HeatRow]) -> None:
    axis.imshow([[square.colour(_WHITE) for square in row.squares] for row in found], aspect="auto")
    for y, row in enumerate(found):
        for x, square in enumerate(row.squares):
            axis.text(x, y, square.label, ha="center", va="center", size=7 if square.exact else 5)
    axis.set_xticks(range(len(QPS_LEVELS)), [f"{qps:g}" for qps in QPS_LEVELS], size=7)
    axis.set_yticks(range(len(found)), [f"{row.context} {row.title}" for row in found], size=7)
