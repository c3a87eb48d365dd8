"""`ppd bench paper`: the paper's tables and figures from the calibrated model, beside the published ones."""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import Progress

from bench import paper_experiments as experiments
from bench.paper_report import Results, write_html
from ppd.core import report, seeds
from ppd.core.report import PAIRS
from ppd.core.seeds import sweep
from ppd.core.seeds.sweep import Key, Point
from simulator.calibrate import SEEDS, Error, bands, errors, split
from simulator.offline import measure
from simulator.sweep import Constants, cluster_spec, keys, run

_QUICK_SHARE = 10  # one in this many points


def main(argv: list[str]) -> int:
    args = _parse(argv)
    console = Console(stderr=True)
    began_s = time.monotonic()
    points = _sweep(args, console)
    sweep_s = time.monotonic() - began_s
    results = _results(points, sweep_s, _truth(points, args, console), 30.0 if args.quick else 120.0, console)
    if args.json:
        sys.stdout.buffer.write(msgspec.json.encode(results) + b"\n")
        return 0
    try:
        page = write_html(results, points)
    except ImportError:
        console.print("plots need matplotlib: pip install 'ppd[plots]'")
        return 2
    args.out.write_text(page)
    console.print(f"{args.out}: {len(points)} points in {sweep_s:.0f} s")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("ppd bench paper", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the sweep's points, shorter runs")
    add("--json", action="store_true", help="figures for another program, no report")
    add("--out", type=Path, default=Path("paper.html"), help="the report")
    add("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args(argv)


def _sweep(args: argparse.Namespace, console: Console) -> dict[Key, Point]:
    wanted = keys()
    if args.quick:
        kept = {key[1:] for key in wanted[:: _QUICK_SHARE + 1]}  # whole cells, so that placements compare
        wanted = [key for i, key in enumerate(wanted) if key[1:] in kept and i % 180 % _QUICK_SHARE == 0]
    points: dict[Key, Point] = {}
    with Progress(console=console) as progress:
        bar = progress.add_task("sweep", total=len(wanted))
        for point in run(wanted, Constants(), processes=args.processes):
            points[point.config, point.workload, point.qps] = point
            progress.advance(bar)
    return points


def _truth(points: dict[Key, Point], args: argparse.Namespace, console: Console) -> list[Error]:
    """The errors on those points that were not fitted."""
    _, held_out = split(sweep.points().values())
    judged = [p for p in held_out if (p.config, p.workload, p.qps) in points]
    found: list[Error] = []
    with Progress(console=console) as progress:
        bar = progress.add_task("truth", total=len(judged))
        for error in errors(judged, Constants(), SEEDS[:1] if args.quick else SEEDS, args.processes):
            if error.simulated.n:
                found.append(error)
            progress.advance(bar)
    return found


def _results(
    points: dict[Key, Point], sweep_s: float, errors: list[Error], duration_s: float, console: Console
) -> Results:
    constants = Constants()
    measured = sweep.points()
    complete = all((c, w, q) in points for pair in PAIRS.items() for c in pair for _, w, q in keys())
    steps: dict[str, Any] = {}
    jobs: dict[str, Callable[[], Any]] = {
        "links": lambda: experiments.links(constants, duration_s),
        "weights_seed": lambda: experiments.weights_sweep(constants, duration_s, _seed_table()),
        "weights_simulated": lambda: experiments.weights_sweep(constants, duration_s, _own_table(constants)),
        "wildchat": lambda: experiments.wildchat_wins(constants, min(duration_s, 20.0)),
        "failures": lambda: experiments.failures(constants),
        "path_dependence": experiments.path_dependence,
        "handoff": experiments.handoff,
    }
    with Progress(console=console) as progress:
        bar = progress.add_task("experiments", total=len(jobs))
        for name, job in jobs.items():
            steps[name] = job()
            progress.advance(bar)
    return Results(
        constants=constants,
        sweep_s=round(sweep_s, 1),
        points=len(points),
        simulated=report.build(points) if complete else None,
        raw=report.build(),
        bands=bands(errors),
        errors=errors,
        crashed=sorted(f"{c} {w} {q:g}" for (c, w, q), p in measured.items() if p.crashed),
        interference=_interference(constants),
        **steps,
    )


def _interference(constants: Constants) -> dict[str, float]:
    """Figures 2, 7 and 8: what is prefilled beside how many decodes, with own and with shared contexts."""
    cases = {
        "one full prefill of 1,024, batch 200": (200, 1024, 0, 1),
        "one append of 64 to 960, batch 200": (200, 64, 960, 1),
        "four full prefills of 1,024, batch 200": (200, 1024, 0, 4),
        "four appends of 64 to 960, batch 200": (200, 64, 960, 4),
        "full prefill of 8,192 (a chunk of 32K), batch 32": (32, 8192, 24_576, 1),
        "append of 256 to 64K, batch 32": (32, 256, 65_536, 1),
    }
    return {
        f"{name}, {'shared' if shared else 'own'} contexts": round(
            experiments.interference(constants, *case, shared=shared), 1
        )
        for name, case in cases.items()
        for shared in (False, True)
    }


def _seed_table() -> Any:
    return seeds.load(seeds.name("1P3D"))


def _own_table(constants: Constants) -> Any:
    return measure(cluster_spec("1P_3D", constants, client_limit=0), "1P3D", levels=(4.0,))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
