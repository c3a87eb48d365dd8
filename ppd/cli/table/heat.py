"""The table as a grid of verdicts under one pair of weights, for whatever draws it."""

from collections.abc import Iterator

import msgspec

from ppd.core.cells import QPS_LEVELS, SHAPES, Cell, Context, Ratio
from ppd.core.names import Route
from ppd.core.records import CellRecord
from ppd.core.score import Weights, delta_tpot, delta_ttft
from ppd.core.table import Table

STRONG = 0.5  # a score from which the colour is full
LOCAL, REMOTE = (26, 152, 80), (230, 97, 45)  # red, green, blue of a full colour


class Square(msgspec.Struct, frozen=True):
    """One cell. `exact`: measured itself; else the nearest measured cell speaks for it."""

    cell: Cell
    local: bool
    score: float  # > 0: D-local
    exact: bool
    source: str  # the cell that decided
    ttft_change: float  # of D-local against P->D, as a share: -0.5 = half
    tpot_change: float
    record: CellRecord  # of the source

    @property
    def strength(self) -> float:
        """Of the colour, 0..1: fainter where the score is small, and much where it was not measured."""
        score = min(1.0, abs(self.score) / STRONG)
        return 0.25 + 0.6 * score if self.exact else 0.18 * score

    def colour(self, ground: tuple[int, int, int]) -> tuple[int, int, int]:
        """Red, green and blue, 0..255, on a ground of that colour."""
        full = LOCAL if self.local else REMOTE
        red, green, blue = (round(g + (f - g) * self.strength) for f, g in zip(full, ground, strict=True))
        return red, green, blue

    @property
    def label(self) -> str:
        """D (D-local) or P (P->D) and the score's size; in lower case where it was not measured here."""
        letter = "D" if self.local else "P"
        size = f"{abs(self.score):.2f}".removeprefix("0")
        return (letter if self.exact else letter.lower()) + (size if len(size) <= 4 else "9+")

    def story(self) -> str:
        """What is known, in one line."""
        lines = [
            f"{self.cell}: {'D-local' if self.local else 'P->D'}, score {self.score:+.3f}",
            f"TTFT {self.ttft_change:+.0%}, TPOT {self.tpot_change:+.0%} by staying on D",
        ]
        lines += [
            f"{path}: TTFT {e.ttft_ms.mean:.4g} ± {e.ttft_ms.sd:.2g} ms, TPOT {e.tpot_ms.mean:.4g} ± "
            f"{e.tpot_ms.sd:.2g} ms, {e.ttft_ms.n:g} turns, {e.provenance}"
            for path, e in sorted(self.record.paths.items())
        ]
        return "; ".join(lines if self.exact else [*lines, f"not measured: {self.source} speaks for it"])


class HeatRow(msgspec.Struct, frozen=True):
    context: Context
    ratio: Ratio
    squares: tuple[Square, ...]  # one for each of QPS_LEVELS

    @property
    def title(self) -> str:
        shape = SHAPES[self.ratio]
        return f"{self.ratio} {shape.n_in}→{shape.n_out}"


def rows(table: Table, weights: Weights) -> Iterator[HeatRow]:
    """Rows by context and type; a context that was not measured at all is left out."""
    verdicts = table.verdicts(weights.ttft, weights.tpot)
    for context in Context:
        if any(table.lookup(Cell(context, r, q).slot).exact for r in Ratio for q in QPS_LEVELS):
            for ratio in Ratio:
                found = []
                for qps in QPS_LEVELS:
                    cell = Cell(context, ratio, qps)
                    verdict = verdicts[cell.slot]
                    row = verdict.row
                    found.append(
                        Square(
                            cell,
                            verdict.path is Route.D_LOCAL,
                            verdict.score,
                            row.exact,
                            row.text,
                            -delta_ttft(row.p_d, row.d_local),
                            delta_tpot(row.p_d, row.d_local),
                            row.record,
                        )
                    )
                yield HeatRow(context, ratio, tuple(found))


def left_out(table: Table) -> list[Context]:
    """The contexts that `rows` leaves out."""
    return [
        context
        for context in Context
        if not any(table.lookup(Cell(context, r, q).slot).exact for r in Ratio for q in QPS_LEVELS)
    ]


def headline(table: Table) -> str:
    snapshot = table.snapshot
    about = f"{table.model} on {table.placement}, version {table.version}"
    return about + (", frozen" if snapshot.frozen else "") + f": {snapshot.source}"


def share(found: list[HeatRow]) -> str:
    """How many of the measured cells stay on D."""
    measured = [square for row in found for square in row.squares if square.exact]
    return f"{sum(square.local for square in measured)} of {len(measured)} measured cells D-local"
