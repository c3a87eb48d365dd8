"""`ppd bench policies`: every policy under conditions that differ in kind; what each loses to the best."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid

from bench.policies_conditions import RATE_SEEDS, NoRateError, conditions
from bench.policies_regret import Claim, Regret, claims, regrets
from bench.policies_run import POLICIES, SETTLED_TURNS, Outcome, simulate
from bench.policies_store import Store
from simulator import parallel

_FIRST_SEED = 11  # those below were used while the policy was made


def main(argv: list[str]) -> int:
    args = _parse(argv)
    console = Console(stderr=True)
    try:
        known = [c.name for c in conditions(args.mooncake)]
    except NoRateError as error:
        console.print(str(error))
        return 2
    chosen = [name for name in known if not args.condition or name in args.condition]
    if not chosen:
        console.print(f"no such condition: there are {', '.join(known)}")
        return 2
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    if set(seeds) & set(RATE_SEEDS):
        console.print(f"seeds {RATE_SEEDS} found the rates: take others")
        return 2
    wanted = tuple(args.policy or POLICIES)
    duration_s = 60.0 if args.quick else args.duration
    # Seed by seed, so that a run that is stopped has looked at all conditions alike.
    tasks = [
        _Task(name, args.mooncake, wanted, seed, duration_s, args.results)
        for seed in seeds
        for name in chosen
    ]
    outcomes: list[Outcome] = []
    with Progress(console=console) as progress:
        bar = progress.add_task("policies", total=len(tasks))
        for found in _run(tasks, args.processes):
            outcomes += found
            progress.advance(bar)
    if args.json:
        page = {"claims": claims(outcomes), "regrets": regrets(outcomes), "outcomes": outcomes}
        sys.stdout.buffer.write(msgspec.json.encode(page) + b"\n")
    else:
        _show(outcomes, Console())
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("ppd bench policies", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="one seed and a minute of virtual time each")
    add("--seeds", type=int, default=3)
    add("--first-seed", type=int, default=_FIRST_SEED)
    add("--duration", type=float, default=150.0, help="virtual seconds of arrivals; twice that for a drift")
    add("--condition", action="append", help="only this one (may be repeated)")
    add("--policy", action="append", help="only this one (may be repeated), such as static:x=0.5")
    add("--mooncake", type=Path, help="the Mooncake conversation trace, for the condition of that name")
    add("--processes", type=int, default=os.cpu_count() or 1)
    add("--results", type=Path, help="a folder that keeps each outcome: what is there is not run again")
    add("--json", action="store_true", help="every outcome, for another program")
    return parser.parse_args(argv)


class _Task(NamedTuple):
    condition: str
    mooncake: Path | None
    policies: tuple[str, ...]
    seed: int
    duration_s: float
    results: Path | None


def _run(tasks: list[_Task], processes: int) -> Iterator[list[Outcome]]:
    return parallel.each(_all_policies, tasks, processes)


_stores: dict[Path | None, Store] = {}  # of this process, for their tables


def _all_policies(task: _Task) -> list[Outcome]:
    """Every policy on the same traffic and the same offline table."""
    condition = next(c for c in conditions(task.mooncake) if c.name == task.condition)
    store = _stores.setdefault(task.results, Store(task.results))
    outcomes = []
    for policy in task.policies:
        outcome = store.outcome(condition, policy, task.seed, task.duration_s)
        if outcome is None:
            outcome = simulate(condition, policy, task.seed, task.duration_s, store.table(condition))
            store.keep(condition, outcome, task.duration_s)
        outcomes.append(outcome)
    return outcomes


def _show(outcomes: list[Outcome], console: Console) -> None:
    for condition in dict.fromkeys(o.condition for o in outcomes):
        console.print(_condition(condition, [o for o in outcomes if o.condition == condition]))
    console.print(_summary("Goodput regret", regrets(outcomes)))
    drifts = [o for o in outcomes if o.drifts and o.turns_late]
    if drifts:
        title = f"Goodput regret from {SETTLED_TURNS} turns after a drift on"
        console.print(_summary(title, regrets(drifts, late=True)))
    if judged := claims(outcomes):
        console.print(_claims(judged))


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
    grid = Grid("policy", "mean", "±", "worst", "±", "where", "worst seed", title=title)
    for regret in found:
        where = regret.worst_condition
        grid.add_row(
            regret.policy,
            f"{regret.mean:.3f}",
            f"{regret.mean_spread:.3f}",
            f"{regret.worst:.3f}",
            f"{regret.by_condition[where][1]:.3f}",
            where,
            f"{regret.worst_single:.3f}",
        )
    return grid


def _claims(judged: list[Claim]) -> Grid:
    grid = Grid("what ours promises", "target", "found", "where", "", title="Targets")
    verdicts = {True: "met", False: "missed", None: "too few turns to tell"}
    for claim in judged:
        grid.add_row(
            claim.what, f"{claim.target:.3f}", f"{claim.found:.3f}", claim.where, verdicts[claim.met]
        )
    return grid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
