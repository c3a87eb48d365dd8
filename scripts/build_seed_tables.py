"""Build the shipped seed tables from the released sweep of arXiv:2603.13358.

    python scripts/build_seed_tables.py --csv ppd_h100_sweep.csv     also rewrites the shipped sweep
    python scripts/build_seed_tables.py                              from the shipped sweep

x = 0 comes from the placement with plain D, x = 1 from that with pD (D prefills later turns itself); both are
the figures of turn 2. A point where fewer than 90 % of the requests succeeded is left out and named: crashed
(nothing succeeded) or degraded (the survivors' mean flatters it). The standard deviation is that of a normal
distribution with the point's p50 and p99: (p99 - p50) / 2.326. That overstates nothing but the tail's shape,
and a point of few requests, whose p99 is its maximum, gets too small a one; `n` says how many there were.
"""

import argparse
import csv
import sys
from pathlib import Path

from ppd.core import cells, seeds
from ppd.core.names import Route
from ppd.core.records import CellRecord, Estimate, PathEstimate, TableSnapshot
from ppd.core.seeds import sweep
from ppd.core.seeds.sweep import Point

Z99 = 2.326
SOURCES = {"1P3D": ("1P_3D", "1P_3pD"), "2P2D": ("2P_2D", "2P_2pD"), "3P1D": ("3P_1D", "3P_1pD")}
COLUMNS = (
    "turn2_avg_ttft_ms",
    "turn2_p50_ttft_ms",
    "turn2_p99_ttft_ms",
    "turn2_avg_tpot_ms",
    "turn2_p50_tpot_ms",
    "turn2_p99_tpot_ms",
    "tokens_per_s",
    "success_pct",
)
OUT = Path(seeds.__file__).parent


def read_csv(path: Path) -> list[Point]:
    with path.open(newline="") as file:
        return [
            Point(
                row["config"],
                row["workload"],
                float(row["qps"]),
                int(row["turn2_count"] or 0),
                *(round(float(row[column] or 0), 3) for column in COLUMNS),
            )
            for row in csv.DictReader(file)
        ]


def build(placement: str, points: dict[sweep.Key, Point]) -> tuple[TableSnapshot, list[str]]:
    """The seed table of one placement, and the points that were left out, each with its cause."""
    listed: list[CellRecord] = []
    left_out: list[str] = []
    by_path = dict(zip((Route.P_D, Route.D_LOCAL), SOURCES[placement], strict=True))
    for cell in cells.CELLS:
        if cell.context is cells.Context.HUGE:  # not in the sweep
            continue
        paths = {}
        for path, config in by_path.items():
            point = points[config, f"{cell.context}_{cell.ratio}", cell.qps]
            if point.usable:
                paths[path.value] = _estimate(point)
            else:
                cause = "crashed" if point.crashed else f"degraded, {point.success_pct:.0f} % succeeded"
                left_out.append(f"{config} {cell} ({path}): {cause}")
        if paths:
            listed.append(CellRecord(context=cell.context, ratio=cell.ratio, qps=cell.qps, paths=paths))
    snapshot = TableSnapshot(
        model=seeds.MODEL,
        placement=placement,
        version=1,
        hardware="4xH100",
        source=f"seed {seeds.name(placement)}, {len(left_out)} failed points left out",
        cells=listed,
    )
    return snapshot, left_out


def _estimate(point: Point) -> PathEstimate:
    return PathEstimate(
        ttft_ms=_normal(point.ttft_ms, point.ttft_p50_ms, point.ttft_p99_ms, point.n),
        tpot_ms=_normal(point.tpot_ms, point.tpot_p50_ms, point.tpot_p99_ms, point.n),
    )


def _normal(mean: float, p50: float, p99: float, n: int) -> Estimate:
    return Estimate(mean=mean, sd=round(max(0.0, p99 - p50) / Z99, 3), n=n)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the shipped seed tables.")
    parser.add_argument("--csv", type=Path, help="the released sweep; without it the shipped one is used")
    parser.add_argument("--out", type=Path, default=OUT, help="where the files go")
    args = parser.parse_args(argv)
    if args.csv:
        (args.out / sweep.FILE).write_bytes(sweep.encode(read_csv(args.csv)))
    points = sweep.decode((args.out / sweep.FILE).read_bytes()) if args.csv else sweep.points()
    for placement in seeds.PLACEMENTS:
        snapshot, left_out = build(placement, points)
        target = args.out / f"{seeds.name(placement)}.json.gz"
        target.write_bytes(seeds.encode(snapshot))
        sys.stdout.write(f"{target.name}: {len(snapshot.cells)} cells, {target.stat().st_size} bytes\n")
        for line in left_out:
            sys.stdout.write(f"  left out: {line}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
