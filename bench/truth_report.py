"""Measured against predicted times of the same turns: medians by path, and a plot."""

from pathlib import Path
from statistics import median

import msgspec

from bench.truth_load import LoadTurn
from ppd.core.names import Route

_WHAT = ("ttft", "tpot", "e2e")


class Group(msgspec.Struct, frozen=True):
    turns: str
    what: str
    n: int
    measured_ms: float
    predicted_ms: float

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


def group_of(turn: LoadTurn) -> str:
    if turn.index == 0:
        return "first"
    return "later, P->D" if turn.path is Route.P_D else "later, D-local"


def compare(real: list[LoadTurn], simulated: list[LoadTurn]) -> list[Group]:
    """Of the turns that both have."""
    pairs = _pairs(real, simulated)
    found = []
    for name in sorted({group_of(r) for r, _ in pairs}):
        part = [(r, s) for r, s in pairs if group_of(r) == name]
        for what in _WHAT:
            measured, predicted = (median(1e3 * getattr(p[i], f"{what}_s") for p in part) for i in (0, 1))
            found.append(Group(name, what, len(part), measured, predicted))
    return found


def plot(real: list[LoadTurn], simulated: list[LoadTurn], out: Path) -> None:
    """Needs the extra `plots`."""
    from matplotlib.figure import Figure

    pairs = _pairs(real, simulated)
    figure = Figure(figsize=(14, 4.6), layout="tight")
    for i, what in enumerate(_WHAT):
        ax = figure.add_subplot(1, len(_WHAT), i + 1)
        for name in sorted({group_of(r) for r, _ in pairs}):
            part = [(r, s) for r, s in pairs if group_of(r) == name]
            xs, ys = ([1e3 * getattr(p[k], f"{what}_s") for p in part] for k in (0, 1))
            ax.scatter(xs, ys, s=14, alpha=0.6, linewidths=0, label=name)
        low, high = ax.get_xlim()
        ax.plot([low, high], [low, high], color="black", linewidth=0.8)
        ax.fill_between([low, high], [0.8 * low, 0.8 * high], [1.2 * low, 1.2 * high], alpha=0.1)
        ax.set(
            xlabel=f"measured {what.upper()}, ms", ylabel="predicted", title=f"{what.upper()} of each turn"
        )
        ax.legend()
    figure.savefig(out, dpi=110)


def _pairs(real: list[LoadTurn], simulated: list[LoadTurn]) -> list[tuple[LoadTurn, LoadTurn]]:
    known = {(t.conversation, t.index): t for t in simulated}
    return [(t, known[t.conversation, t.index]) for t in real if (t.conversation, t.index) in known]
