"""`python -m bench.relay [--peer BINARY] [--floor] [--rounds 3] [--only N] [--profile FILE] [--json]`.

Router on core 0; load, engines, etcd and NATS on core 1. The rounds of all alternate, and the median of each
is compared. CPU is that of the router's process, as the kernel counts it. `--floor` runs a bare relay of
bytes as well: what of the cost is Python's and the kernel's, whatever a router does.
"""

import argparse
import json
import os
import statistics
import sys

from bench.relay import routers
from bench.relay.load import Case, Result, direct, run

CASES = (
    Case("64 streams, a chunk each 10 ms", 64, 10, True, 10, begin_ms=640),
    Case("16 connections, all chunks at once", 16, 150, True, 0),
    Case("non-streamed P->D", 16, 400, False, 0),
    Case("64 streams in step: all begin, and begin again, within 10 ms", 64, 10, True, 10, begin_ms=10),
    Case("64 streams of one batch", 64, 10, True, 10, begin_ms=640, batched=True),
    Case("2,000 streams, a chunk each 200 ms", 2000, 2, True, 200, begin_ms=12_800),
)
TARGETS = (0.8, 1.0, 1.5, 0.8, 0.8, 0.8)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.relay")
    parser.add_argument("--peer", default="", help="path of vllm-router; empty: only ours")
    parser.add_argument("--floor", action="store_true", help="a bare relay of bytes beside them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=23100)
    parser.add_argument("--only", type=int, default=-1, help="number of one case")
    parser.add_argument("--profile", default="", help="write cProfile's figures of our frontend here")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {int(routers.LOAD_CORE)})
    report = []
    for number, case in enumerate(CASES):
        if args.only in (-1, number):
            report.append(_measure(case, TARGETS[number], args))
    print(json.dumps(report, indent=1) if args.json else "\n".join(_line(row) for row in report))
    return 0


def _measure(case: Case, target: float, args: argparse.Namespace) -> dict[str, object]:
    engines_own: list[Result] = []
    with routers.Processes() as processes:
        engine = args.port + 50
        routers.engines(processes, engine, case.gap_ms, case.chunks, case.batched)
        ports = {"ours": (args.port, routers.frontend(processes, args.port, engine, args.profile))}
        if args.peer:
            ports["peer"] = (args.port + 10, routers.peer(processes, args.peer, args.port + 10, engine))
        if args.floor:
            ports["floor"] = (args.port + 20, routers.floor(processes, args.port + 20, engine))
        results: dict[str, list[Result]] = {who: [] for who in ports}
        for _ in range(args.rounds):
            engines_own.append(direct(engine + 1, case))
            for who, (port, pid) in ports.items():
                results[who].append(run(port, pid, case))
        if any(result.failed for result in results["ours"]):
            print(processes.log("frontend"), file=sys.stderr)
    row: dict[str, object] = {"case": case.name, "target": target}
    row["engine"] = {
        f"first_byte_p{p}_ms": round(statistics.median(each.percentile(p / 100) for each in engines_own), 2)
        for p in (50, 99)
    }
    row |= {who: _summary(found, case) for who, found in results.items()}
    if peer := results.get("peer"):
        row["ratio"], row["ratios"] = _ratios(results["ours"], peer)
        if floor := results.get("floor"):
            row["floor_ratio"], row["floor_ratios"] = _ratios(floor, peer)
    return row


def _ratios(some: list[Result], others: list[Result]) -> tuple[float, list[float]]:
    """Of the medians, and round by round."""
    rounds = [round(a.cpu_us / b.cpu_us, 3) for a, b in zip(some, others, strict=True)]
    return round(_median(some) / _median(others), 3), rounds


def _median(results: list[Result]) -> float:
    return statistics.median(result.cpu_us for result in results)


def _summary(results: list[Result], case: Case) -> dict[str, float]:
    costs = [result.cpu_us for result in results]
    return {
        "cpu_us_per_turn": round(statistics.median(costs), 1),
        "system_us": round(statistics.median(result.system_us for result in results), 1),
        "cpu_us_min": round(min(costs), 1),
        "cpu_us_max": round(max(costs), 1),
        "cpu_us_per_chunk": round(statistics.median(costs) / case.chunks, 2) if case.stream else 0,
        "first_byte_p50_ms": round(statistics.median(result.percentile(0.5) for result in results), 2),
        "first_byte_p99_ms": round(statistics.median(result.percentile(0.99) for result in results), 2),
        "failed": sum(result.failed for result in results),
    }


def _line(row: dict[str, object]) -> str:
    lines = [f"{row['case']}"]
    for who in ("engine", "ours", "peer", "floor"):
        if who in row:
            lines.append(f"  {who:5} {row[who]}")
    if "ratio" in row:
        lines.append(f"  ratio {row['ratio']} (target at most {row['target']}), rounds {row['ratios']}")
    if "floor_ratio" in row:
        lines.append(f"  floor's ratio {row['floor_ratio']}, rounds {row['floor_ratios']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
