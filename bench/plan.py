"""What placing one turn costs by the number of engines, and what a change of the registry costs.

    python -m bench.plan [--engines 4,16,64,256,1000] [--json]

In process: a frontend's router and cluster on registered engines with fresh load reports, no network. Turns
are of known conversations, drawn at random with a fixed seed.
"""

import argparse
import gc
import json
import logging
import random
import time
from typing import Any

from bench.decide import draw_turn, percentiles
from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.openai import Chat
from controlplane.engines.cluster import Cluster
from controlplane.engines.links import Links
from controlplane.shared.tables import Tables
from controlplane.turn.features import Conversation
from controlplane.turn.route import Router
from ppd.core import policies, seeds
from ppd.core.names import Role, WorkerStatus, table_key
from ppd.core.records import WorkerLoad, WorkerRecord, encode
from ppd.core.sessions import Mark, Match, Session

_CASES = 512
_BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


class _NoPool:
    def close(self) -> None: ...


def records(n: int) -> dict[str, WorkerRecord]:
    """A quarter prefill, the rest decode engines."""
    found = {}
    for i in range(n):
        role = Role.PREFILL if i % 4 == 0 else Role.DECODE
        name = f"{role.letter.lower()}{i}"
        found[name] = WorkerRecord(
            worker_id=name,
            name=name,
            role=role,
            model="m",
            url="http://127.0.0.1:1",
            status=WorkerStatus.READY,
            kv_bytes_per_token=131072,
            max_batch_tokens=8192,
        )
    return found


def cluster(known: dict[str, WorkerRecord], draw: random.Random) -> Cluster:
    pool: Any = _NoPool()
    made = Cluster(lambda _: pool, logging.getLogger("bench"))
    made.update(known, 0.0)
    for worker_id in known:
        load = WorkerLoad(
            worker_id=worker_id,
            running=draw.randint(0, 200),
            kv_use=0.9 * draw.random(),
            queued_prefill_tokens=draw.randint(0, 20000),
            itl_ms=draw.uniform(5, 30),
            prefill_speed_tokens_per_s=draw.uniform(5000, 50000),
        )
        made.report(load, 0.0)
    return made


def conversations(known: dict[str, WorkerRecord], draw: random.Random) -> list[Conversation]:
    by_role = {role: [w for w in known.values() if w.role is role] for role in Role}
    found = []
    for _ in range(_CASES):
        session = Session("s")
        session.decode_worker = draw.choice(by_role[Role.DECODE]).worker_id
        session.prefill_worker = draw.choice(by_role[Role.PREFILL]).worker_id
        turn = draw_turn(draw)
        match = None if turn.turn == 1 else Match(session, Mark(1, 2, 1, turn.n_ctx, turn.n_ctx), True, 1)
        found.append(Conversation(session if match else None, match, turn, match is None))
    return found


def timed(calls: list[Any], rounds: int) -> dict[str, float]:
    """p50 and p99 in µs."""
    took = []
    gc.disable()
    try:
        for _ in range(rounds):
            for call in calls:
                begin = time.perf_counter_ns()
                call()
                took.append(time.perf_counter_ns() - begin)
    finally:
        gc.enable()
    return percentiles(took)


def measure(n: int, rounds: int) -> dict[str, dict[str, float]]:
    draw = random.Random(n)
    known = records(n)
    engines = cluster(known, draw)
    tables = Tables(logging.getLogger("bench"))
    snapshot = seeds.load(seeds.name("2P2D"))
    snapshot.model, snapshot.placement = "m", engines.placement("m")
    tables.update(table_key("m", snapshot.placement), encode(snapshot))
    router = Router(engines, policies.make(policies.DEFAULT), tables, Links(), stale_s=2.0)
    request = Chat().parse(_BODY, {}, Prefixes())
    turns = conversations(known, draw)
    plans = [lambda c=each: router.plan(request, c, "balanced", 0.1) for each in turns]
    timed(plans, 1)  # warm: the table's verdicts are made once per class
    one = next(iter(known.values()))
    states = (WorkerStatus.DRAINING, WorkerStatus.READY)

    def change(status: WorkerStatus) -> None:
        changed = WorkerRecord(**{f: getattr(one, f) for f in one.__struct_fields__} | {"status": status})
        engines.update(known | {one.worker_id: changed}, 0.1)

    updates = [lambda s=status: change(s) for status in states]
    return {"plan": timed(plans, rounds), "update": timed(updates, max(4, min(100, 4000 // n)))}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the placement of one turn by the number of engines.")
    parser.add_argument("--engines", default="4,16,64,256,1000", help="numbers of engines")
    parser.add_argument("--rounds", type=int, default=4, help=f"passes over {_CASES} turns")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    found = {int(n): measure(int(n), args.rounds) for n in args.engines.split(",")}
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"{'engines':>8}{'plan p50 µs':>13}{'p99 µs':>10}{'update p50 µs':>15}{'p99 µs':>10}")
    for n, got in found.items():
        plan, update = got["plan"], got["update"]
        print(
            f"{n:>8}{plan['p50_us']:>13.1f}{plan['p99_us']:>10.1f}"
            f"{update['p50_us']:>15.1f}{update['p99_us']:>10.1f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
