"""`ppd bench fit`: the sweep's few constants fitted anew on a part of it, and the errors on the rest."""

import argparse
import os
import sys
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid

from ppd.core.seeds import sweep
from ppd.core.seeds.sweep import Point
from simulator.calibrate import SEEDS, TRAIN_SHARE, Band, Error, bands, chats, errors, fit, noise, split
from simulator.sweep import Constants, run

_TARGET = 0.10


def main(argv: list[str]) -> int:
    args = _parse(argv)
    console = Console(stderr=True)
    constants = msgspec.json.decode(args.start.read_bytes(), type=Constants) if args.start else Constants()
    train, held_out = split(sweep.points().values())
    train, held_out = train[:: args.every], held_out[:: args.every]
    if not (args.check or args.floor):
        console.print(f"{len(train)} points to fit, {len(held_out)} to judge by")
        fit_seeds = SEEDS[: args.seeds]
        constants = fit(
            train, constants, fit_seeds, args.processes, lambda loss, c: console.print(f"{loss:.4f} {c}")
        )
    if args.floor:
        held_out = again(held_out, constants, args.processes)
    found: list[Error] = []
    with Progress(console=console) as progress:
        bar = progress.add_task("held out", total=len(held_out))
        for error in errors(held_out, constants, processes=args.processes):
            if error.simulated.n:
                found.append(error)
            progress.advance(bar)
    if args.json:
        page = {"constants": constants, "bands": bands(found), "errors": found}
        sys.stdout.buffer.write(msgspec.json.encode(page) + b"\n")
    else:
        _show(constants, found, Console())
    return 0


def again(points: list[Point], constants: Constants, processes: int) -> list[Point]:
    """The same points as the model itself would measure them once, by a seed that predicts nothing."""
    wanted = [(p.config, p.workload, p.qps) for p in points]
    simulated = run(wanted, constants, (max(SEEDS) + 1,), processes, [chats(p) for p in points])
    return [p for p in simulated if p.n]


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("ppd bench fit", description=__doc__)
    add = parser.add_argument
    add("--check", action="store_true", help="fit nothing: judge the constants as they are")
    add("--floor", action="store_true", help="judge by a further seed of the model: a perfect one's errors")
    add("--start", type=Path, help="JSON of the constants to begin with")
    add("--seeds", type=int, default=1, help=f"of each point in the fit, up to {len(SEEDS)}")
    add("--every", type=int, default=1, help="only each so manieth point, of both parts")
    add("--processes", type=int, default=os.cpu_count() or 1)
    add("--json", action="store_true", help="constants, bands and each point's errors")
    return parser.parse_args(argv)


def _show(constants: Constants, found: list[Error], console: Console) -> None:
    console.print(constants)
    judged = bands(found)
    console.print(
        f"fitted on {TRAIN_SHARE:.0%} of the usable points, judged on {len(found)} others, turn 2, "
        f"median absolute relative error (target {_TARGET:.0%}):"
    )
    for name in ("ttft", "ttft_p50", "tpot"):
        within = sum(getattr(b, name) <= _TARGET for b in judged)
        error = median(abs(getattr(e, name)) for e in found)
        console.print(f"  {name}: {error:.1%}, {within} of {len(judged)} bands within the target")
    scatter = noise(sweep.points().values())
    console.print(
        f"scatter: how far measured TTFTs lie from where their neighbours in rate put them; "
        f"{sum(v > _TARGET for v in scatter.values())} bands are beyond the target by it alone"
    )
    console.print(_grid(judged, scatter))


def _grid(judged: list[Band], scatter: dict[tuple[str, str], float]) -> Grid:
    grid = Grid("placement", "QPS", "points", "TTFT", "bias", "scatter", "TTFT p50", "TPOT", "bias")
    for b in judged:
        grid.add_row(
            b.config,
            b.band,
            str(b.points),
            *(f"{v:.1%}" for v in (b.ttft, b.ttft_bias)),
            f"{scatter.get((b.config, b.band), 0.0):.1%}",
            *(f"{v:.1%}" for v in (b.ttft_p50, b.tpot, b.tpot_bias)),
        )
    return grid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
