"""`python -m bench.tracing`: the frontend's CPU a turn without tracing, and with 0, 0.1 and all turns traced.

Frontends that differ in nothing else take turns under the same load, from stand-in engines that cost nothing
(`bench.relay`); the median over the rounds counts. Spans go over HTTP to a stand-in collector, or where
`--collector` says. CPU is that of the frontend's process, its exporter thread included.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys

from bench.relay import routers
from bench.relay.load import Case, run

CASE = Case("16 connections, all chunks at once", 16, 150, True, 0)
RATIOS = {"off": None, "0": "0", "0.1": "0.1", "1": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.tracing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=23400)
    parser.add_argument("--collector", default="", help="OTLP endpoint; empty: a stand-in")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {int(routers.LOAD_CORE)})
    costs = _measure(args.port, args.rounds, args.collector)
    off = statistics.median(costs["off"])
    report = {
        ratio: {
            "cpu_us_per_turn": round(statistics.median(found), 1),
            "over_off_us": round(statistics.median(found) - off, 1),
            "min": round(min(found), 1),
            "max": round(max(found), 1),
        }
        for ratio, found in costs.items()
    }
    print(json.dumps(report, indent=1) if args.json else _table(report))
    return 0


def _measure(port: int, rounds: int, collector: str) -> dict[str, list[float]]:
    """Microseconds of CPU a turn, by share of the turns that are traced."""
    costs: dict[str, list[float]] = {ratio: [] for ratio in RATIOS}
    with contextlib.ExitStack() as stack:
        engine = port + 50
        own = stack.enter_context(routers.Processes())
        routers.engines(own, engine, CASE.gap_ms, CASE.chunks)
        if not collector:
            collector = f"http://127.0.0.1:{port + 60}/v1/traces"
            routers.engines(stack.enter_context(routers.Processes()), port + 60, 0, 1)
        pids = {}
        for number, (ratio, given) in enumerate(RATIOS.items()):
            env = {} if given is None else {"PPD_OTLP_ENDPOINT": collector, "PPD_TRACE_RATIO": given}
            processes = stack.enter_context(routers.Processes())
            at = port + 10 * number
            pids[ratio] = (at, routers.frontend(processes, at, engine, **env))
        for _ in range(rounds):
            for ratio, (at, pid) in pids.items():
                result = run(at, pid, CASE)
                if result.failed:
                    raise SystemExit(f"{result.failed} turns failed at a ratio of {ratio}")
                costs[ratio].append(result.cpu_us)
    return costs


def _table(report: dict[str, dict[str, float]]) -> str:
    lines = [f"{CASE.name}, CPU a turn in µs", f"{'traced':>8} {'median':>8} {'more':>8} {'min … max':>16}"]
    for ratio, row in report.items():
        spread = f"{row['min']:.0f} … {row['max']:.0f}"
        lines.append(f"{ratio:>8} {row['cpu_us_per_turn']:>8} {row['over_off_us']:>8} {spread:>16}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
