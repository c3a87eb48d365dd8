"""The plots of `ppd bench paper`. Needs the extra `plots` (matplotlib)."""

from collections.abc import Mapping, Sequence
from typing import Any

from ppd.core.seeds.sweep import Key, Point
from simulator.calibrate import Error
from simulator.sweep import WORKLOADS


def _subplots(n: int, height: float = 4.2) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4 * n, height))
    return figure, [figure.add_subplot(1, n, i + 1) for i in range(n)]


def predicted_against_measured(errors: Sequence[Error]) -> Any:
    figure, axes = _subplots(2)
    for ax, name, unit in ((axes[0], "ttft_ms", "turn-2 TTFT, ms"), (axes[1], "tpot_ms", "turn-2 TPOT, ms")):
        measured = [getattr(e.measured, name) for e in errors]
        simulated = [getattr(e.simulated, name) for e in errors]
        ax.scatter(measured, simulated, s=5, alpha=0.35, linewidths=0)
        low, high = min(measured), max(measured)
        ax.plot([low, high], [low, high], color="black", linewidth=0.8)
        ax.set(xscale="log", yscale="log", xlabel=f"measured {unit}", ylabel="predicted")
    return figure


def against_rate(points: Mapping[Key, Point], measured: Mapping[Key, Point], workload: str) -> Any:
    """Turn-2 TTFT and TPOT of x = 0 and x = 1 as the rate grows, simulated and measured."""
    figure, axes = _subplots(2)
    for color, config in (("C0", "1P_3D"), ("C1", "1P_3pD"), ("C2", "4R")):
        for name, ax in (("ttft_ms", axes[0]), ("tpot_ms", axes[1])):
            for found, style in ((points, "-"), (measured, "o")):
                line = [
                    (q, getattr(p, name))
                    for (c, w, q), p in found.items()
                    if c == config and w == workload and p.usable
                ]
                label = f"{config} {'simulated' if style == '-' else 'measured'}"
                ax.plot(*zip(*line, strict=True), style, color=color, label=label) if line else None
    axes[0].set(xscale="log", yscale="log", xlabel="QPS", ylabel=f"TTFT, ms ({workload})")
    axes[1].set(xscale="log", xlabel="QPS", ylabel="TPOT, ms")
    axes[0].legend(fontsize=7)
    return figure


def change_map(points: Mapping[Key, Point], pairs: Mapping[str, str], rates: Sequence[float]) -> Any:
    """The change of turn-2 TTFT from x = 0 to x = 1, %, by workload and rate."""
    figure, axes = _subplots(len(pairs), 5.2)
    for ax, (x0, x1) in zip(axes, pairs.items(), strict=True):
        grid = [[_change(points.get((x0, w, q)), points.get((x1, w, q))) for q in rates] for w in WORKLOADS]
        image = ax.imshow(grid, aspect="auto", cmap="RdYlGn_r", vmin=-100, vmax=100)
        ax.set(title=f"{x0} to {x1}", xticks=range(len(rates)), xticklabels=[f"{q:g}" for q in rates])
        ax.set(yticks=range(len(WORKLOADS)), yticklabels=WORKLOADS if ax is axes[0] else [])
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure


def _change(x0: Point | None, x1: Point | None) -> float:
    if x0 is None or x1 is None or x0.ttft_ms <= 0 or x1.ttft_ms <= 0:
        return float("nan")
    return 100 * (x1.ttft_ms / x0.ttft_ms - 1)


def lines(
    x: Sequence[float], ys: Mapping[str, Sequence[float]], x_label: str, y_label: str, log_x: bool
) -> Any:
    figure, (ax,) = _subplots(1)
    for name, y in ys.items():
        ax.plot(x, y, "o-", label=name)
    ax.set(xlabel=x_label, ylabel=y_label, xscale="log" if log_x else "linear", ylim=(0, None))
    ax.legend(fontsize=8)
    return figure
