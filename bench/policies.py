"""`ppd bench policies`: every policy under conditions that differ in kind; what each loses to the best."""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path as FilePath

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid

from bench.policies_conditions import Condition, conditions
from bench.policies_run import OURS, POLICIES, Outcome, Regret, regrets, simulate
from ppd.core.records import TableSnapshot
from simulator import offline

_TARGET = 0.03


def main(argv: list[str]) -> int:
    args = _parse(argv)
    console = Console(stderr=True)
    known = conditions(args.mooncake)
    chosen = [c for c in known if not args.condition or c.name in args.condition]
    if not chosen:
        console.print(f"no such condition: there are {', '.join(c.name for c in known)}")
        return 2
    wanted = args.policy or list(POLICIES)
    seeds = list(range(1 if args.quick else args.seeds))
    duration_s = 60.0 if args.quick else args.duration
    outcomes = _run(chosen, wanted, seeds, duration_s, args, console)
    if args.json:
        sys.stdout.buffer.write(msgspec.json.encode(outcomes) + b"\n")
    else:
        _show(outcomes, Console())
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("ppd bench policies", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="one seed and a minute of virtual time each")
    add("--seeds", type=int, default=3)
    add("--duration", type=float, default=150.0, help="virtual seconds of arrivals; twice that for a drift")
    add("--condition", action="append", help="only this one (may be repeated)")
    add("--policy", action="append", help="only this one (may be repeated), such as static:x=0.5")
    add("--mooncake", type=FilePath, help="the Mooncake conversation trace, for the condition of that name")
    add("--processes", type=int, default=os.cpu_count() or 1)
    add("--json", action="store_true", help="every outcome, for another program")
    return parser.parse_args(argv)


def _run(
    chosen: list[Condition],
    wanted: list[str],
    seeds: list[int],
    duration_s: float,
    args: argparse.Namespace,
    console: Console,
) -> list[Outcome]:
    tasks = [(c.name, args.mooncake, tuple(wanted), seed, duration_s) for c in chosen for seed in seeds]
    outcomes: list[Outcome] = []
    with Progress(console=console) as progress, ProcessPoolExecutor(args.processes) as pool:
        bar = progress.add_task("policies", total=len(tasks))
        for found in pool.map(_all_policies, tasks):
            outcomes += found
            progress.advance(bar)
    return outcomes


def _all_policies(task: tuple[str, FilePath | None, tuple[str, ...], int, float]) -> list[Outcome]:
    """Every policy on the same traffic and the same offline table."""
    name, trace, wanted, seed, duration_s = task
    condition = next(c for c in conditions(trace) if c.name == name)
    table = _table(condition)
    return [simulate(condition, policy, seed, duration_s, table) for policy in wanted]


_tables: dict[str, TableSnapshot] = {}  # of this process


def _table(condition: Condition) -> TableSnapshot:
    if condition.name not in _tables:
        _tables[condition.name] = offline.measure(condition.spec, condition.placement, levels=(1.0, 6.0))
    return _tables[condition.name]


def _show(outcomes: list[Outcome], console: Console) -> None:
    for condition in dict.fromkeys(o.condition for o in outcomes):
        console.print(_condition(condition, [o for o in outcomes if o.condition == condition]))
    console.print(_summary("Goodput regret", regrets(outcomes)))
    drifts = [o for o in outcomes if o.condition.startswith("drift") and o.turns_late]
    if drifts:
        console.print(
            _summary("Goodput regret from 2,000 turns after a drift on", regrets(drifts, late=True))
        )


def _condition(name: str, outcomes: list[Outcome]) -> Grid:
    grid = Grid(
        "policy", "turns", "TTFT ms", "TPOT ms", "goodput", "late", "local", "KV GB", "explored", title=name
    )
    for policy in dict.fromkeys(o.policy for o in outcomes):
        part = [o for o in outcomes if o.policy == policy]

        def mean(field: str, part: list[Outcome] = part) -> float:
            return float(sum(getattr(o, field) for o in part)) / len(part)

        grid.add_row(
            policy,
            f"{mean('turns'):.0f}",
            f"{mean('ttft_ms'):.1f}",
            f"{mean('tpot_ms'):.2f}",
            f"{mean('goodput'):.3f}",
            f"{mean('goodput_late'):.3f}",
            f"{mean('local'):.2f}",
            f"{mean('kv_gb'):.1f}",
            f"{mean('explored'):.3f}",
        )
    return grid


def _summary(title: str, found: list[Regret]) -> Grid:
    grid = Grid("policy", "mean", "worst", "±", "where", title=f"{title} (target for {OURS}: {_TARGET})")
    for regret in found:
        where = regret.worst_condition
        grid.add_row(
            regret.policy,
            f"{regret.mean:.3f}",
            f"{regret.worst:.3f}",
            f"{regret.by_condition[where][1]:.3f}",
            where,
        )
    return grid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
