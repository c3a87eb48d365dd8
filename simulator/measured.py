"""The authors' measured sweep (`ppd_h100_sweep.csv`), as figures to hold the simulation against."""

import csv
from pathlib import Path

import msgspec

from simulator.sweep import Figures, Point

MIN_SUCCESS_PCT = 90.0


class Measured(msgspec.Struct, frozen=True):
    point: Point
    conversations: int
    figures: Figures
    success_pct: float

    @property
    def usable(self) -> bool:
        """Whether it ran: crashed points, and those that lost more than a tenth, are named, not fitted."""
        return (
            self.success_pct >= MIN_SUCCESS_PCT
            and self.figures.turn2_ttft > 0
            and self.figures.turn2_tpot > 0
        )


def read(path: Path) -> list[Measured]:
    """Raises OSError or KeyError for a file that is not the sweep."""
    with path.open(newline="") as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> Measured:
    return Measured(
        Point(row["config"], row["workload"], float(row["qps"])),
        int(row["turn1_count"]),
        Figures(
            float(row["turn1_avg_ttft_ms"]),
            float(row["turn1_avg_tpot_ms"]),
            float(row["turn2_avg_ttft_ms"]),
            float(row["turn2_avg_tpot_ms"]),
            float(row["tokens_per_s"]),
        ),
        float(row["success_pct"]),
    )
