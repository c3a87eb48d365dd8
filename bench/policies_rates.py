"""Find how much traffic each condition of the arena gets, by one rule that looks at no learning policy.

The rate is the highest at which the best of static x = 0, 1/2 and 1 still keeps nine tenths of the turns
within the limits, found by bisection on seeds that the arena does not use. The file it writes is what
`ppd bench policies` reads. Conditions that are in it already are left as they are, unless named.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec
from rich.console import Console
from rich.progress import Progress

from bench.policies_conditions import RATE_SEEDS, RATES_FILE, Condition, conditions
from bench.policies_run import simulate
from simulator import parallel

SHARE = 0.9
SHARES_LOCAL = ("static:x=0", "static:x=0.5", "static:x=1")
_START = 1.0
_NEAR = 1.05  # the bracket's ratio at which it is found
_BOUNDS = (1 / 64, 64.0)
_DERIVED = ("drift-traffic",)  # its rates are those of two others


class Found(msgspec.Struct, frozen=True):
    rate: float
    goodput: float  # of the best one, at that rate
    policy: str


Task = tuple[str, Path | None, float]


def main(argv: list[str]) -> int:
    args = _parse(argv)
    console = Console(stderr=True)
    names = [c.name for c in _unrated(args.mooncake) if c.name not in _DERIVED]
    if unknown := set(args.condition or ()) - set(names):
        console.print(f"no such condition: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        return 2
    known = _read(args.out)
    wanted = args.condition or [name for name in names if name not in known]
    tasks = [(name, args.mooncake, args.duration) for name in wanted]
    with Progress(console=console) as progress:
        bar = progress.add_task("rates", total=len(tasks))
        for name, found in _search_all(tasks, args.processes):
            known[name] = found
            _write(args.out, known, args.duration)
            progress.advance(bar)
            console.print(f"{name}: {found.rate:g} a second, {found.goodput:.3f} by {found.policy}")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.policies_rates", description=__doc__)
    add = parser.add_argument
    add("--condition", action="append", help="find this one anew (may be repeated)")
    add("--duration", type=float, default=150.0, help="virtual seconds of arrivals; twice that for a drift")
    add("--mooncake", type=Path, help="the Mooncake conversation trace, for the condition of that name")
    add("--processes", type=int, default=os.cpu_count() or 1)
    add("--out", type=Path, default=Path(__file__).with_name(RATES_FILE), help="the file of rates")
    return parser.parse_args(argv)


def _unrated(trace: Path | None) -> list[Condition]:
    return conditions(trace, at=defaultdict(lambda: _START))


def _search_all(tasks: Iterable[Task], processes: int) -> Iterator[tuple[str, Found]]:
    return parallel.each(_search, tasks, processes)


def _search(task: Task) -> tuple[str, Found]:
    name, trace, duration_s = task
    condition = next(c for c in _unrated(trace) if c.name == name)
    return name, search(condition, duration_s)


def search(condition: Condition, duration_s: float) -> Found:
    """Raises ValueError where no rate within 1/64 and 64 will do."""
    low: Found | None = None
    high = 0.0
    rate = _START
    while low is None or not high or high / low.rate > _NEAR:
        tried = _kept(replace(condition, rate=rate), duration_s, low.policy if low else SHARES_LOCAL[0])
        if tried is not None:
            low = tried
        else:
            high = rate
        if low is None or not high:
            rate = rate * 2 if low else rate / 2
            if not _BOUNDS[0] <= rate <= _BOUNDS[1]:
                raise ValueError(f"{condition.name}: no rate within {_BOUNDS} keeps {SHARE:.0%} of the turns")
        else:
            rate = float(f"{(low.rate * high) ** 0.5:.3g}")
    return low


def _kept(condition: Condition, duration_s: float, likely: str) -> Found | None:
    """The first fixed share that keeps enough of the turns at this rate, the likely one tried first."""
    for policy in (likely, *(p for p in SHARES_LOCAL if p != likely)):
        found: list[float] = []
        for seed in RATE_SEEDS:
            found.append(simulate(condition, policy, seed, duration_s, None).goodput)
            if fmean([*found, *[1.0] * (len(RATE_SEEDS) - len(found))]) < SHARE:
                break  # whatever the other seeds give
        else:
            return Found(condition.rate, round(fmean(found), 4), policy)
    return None


def _read(file: Path) -> dict[str, Found]:
    if not file.is_file():
        return {}
    return msgspec.convert(json.loads(file.read_text())["conditions"], dict[str, Found])


def _write(file: Path, found: dict[str, Found], duration_s: float) -> None:
    page = {
        "rule": f"the best of {', '.join(SHARES_LOCAL)} keeps {SHARE} of the turns within the limits",
        "seeds": list(RATE_SEEDS),
        "duration_s": duration_s,
        "conditions": {name: msgspec.to_builtins(each) for name, each in found.items()},
    }
    file.write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
