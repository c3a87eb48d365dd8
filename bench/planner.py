"""What one planner sustains: turn records a second, memory after a million of them, and watch-to-effect time.

    python -m bench.planner                       the learner alone, and through a real JetStream
    python -m bench.planner --records 1000000     with the memory that they leave behind
    python -m bench.planner --json                for machines

Both parts run in one go on the same machine, so that their ratio is worth more than either figure.
"""

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import psutil

from ppd.core import cells, seeds
from ppd.core.learning.learner import Learner
from ppd.core.learning.publication import improved
from ppd.core.names import Reason, Role, Route, WorkerStatus, planner_subject, turns_subject, worker_key
from ppd.core.placement import parse_placement
from ppd.core.records import TableSnapshot, TurnRecord, WorkerRecord, decode, encode
from ppd.core.table import Table
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from tests.support.planners import PlannerProcess
from tests.support.servers import EtcdServer, NatsServer

MODEL, PLACEMENT = "bench/model", "1P1D"
_DISTINCT = 4096  # records that are made once and used over and over


def records(number: int) -> list[bytes]:
    """Encoded turns over all cells, both paths, with every field that the learner reads."""
    draw = random.Random(1)
    made = []
    for n in range(number):
        cell = cells.CELLS[draw.randrange(len(cells.CELLS))]
        local = draw.random() < 0.8
        shape, context = cells.SHAPES[cell.ratio], cells.CONTEXT_TOKENS[cell.context]
        record = TurnRecord(
            request_id=f"bench-{n}",
            ended_unix_s=1.7e9 + n / 100,
            model=MODEL,
            placement=PLACEMENT,
            path=Route.D_LOCAL if local else Route.P_D,
            reason=Reason.TABLE_LIVE,
            turn=draw.randrange(2, 16),
            session_id=f"s{n % 1000}",
            cell=str(cell),
            n_in_tokens=shape.n_in,
            n_ctx_tokens=context,
            n_out_tokens=shape.n_out,
            n_prompt_tokens=context + shape.n_in,
            expected_cached_tokens=context,
            cached_tokens_decode=context,
            cached_tokens_prefill=-1 if local else context // 2,
            idle_s=draw.expovariate(0.05),
            decode_kv_use=draw.random(),
            decode_running=draw.randrange(32),
            decode_worker=f"d{n % 4}",
            ttft_ms=draw.lognormvariate(4, 0.3),
            tpot_ms=draw.lognormvariate(2, 0.2),
            qps=cell.qps,
        )
        made.append(encode(record))
    return made


def rss_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def learner_alone(count: int) -> dict[str, Any]:
    """Decode and learn, in this process; the memory is what the records left behind."""
    data = records(_DISTINCT)
    learner = Learner(Table(seeds.nearest(parse_placement(PLACEMENT), MODEL)))
    for n in range(_DISTINCT):
        learner.observe(decode(data[n], TurnRecord), 1.7e9)
    before_mb, started_s = rss_mb(psutil.Process().pid), time.perf_counter()
    for n in range(count):
        learner.observe(decode(data[n % _DISTINCT], TurnRecord), 1.7e9 + n / 100)
    took_s = time.perf_counter() - started_s
    considered_s = time.perf_counter()
    improved(learner, learner.prior.snapshot, 0.01, 1e9)
    return {
        "records": count,
        "records_per_s": round(count / took_s),
        "us_per_record": round(took_s / count * 1e6, 1),
        "rss_growth_mb": round(rss_mb(psutil.Process().pid) - before_mb, 1),
        "saved_state_kb": round(len(msgspec.json.encode(learner.learned)) / 1e3, 1),
        "consider_ms": round((time.perf_counter() - considered_s) * 1e3, 1),
    }


async def _status(bus: Bus) -> dict[str, Any]:
    answer = await bus.nc.request(planner_subject("default", "status"), b"{}", timeout=5)
    found: dict[str, Any] = msgspec.json.decode(answer.data)
    return found


async def _wait(bus: Bus, turns: int) -> None:
    while True:
        with contextlib.suppress(nats.errors.Error):
            status = await _status(bus)
            if status["turns"] >= turns and status["tables"]:
                return
        await asyncio.sleep(0.02)


async def through_jetstream(folder: Path, count: int) -> dict[str, Any]:
    """The records are in the stream before the clock starts: the planner's own speed, not the sender's."""
    etcd, server = EtcdServer(folder / "etcd"), NatsServer(folder / "nats")
    etcd.start()
    server.start()
    room = str(4 * 10**9)  # for more than the records: none is dropped before it is counted

    def start() -> PlannerProcess:
        started.append(PlannerProcess(folder, etcd.address, server.url, "default", "--turns-bytes", room))
        return started[-1]

    started: list[PlannerProcess] = []
    planner = start()
    bus, client = Bus([server.url], "bench"), Etcd([etcd.address])
    try:
        await bus.connect()
        for name, role in (("p0", Role.PREFILL), ("d0", Role.DECODE)):
            worker = WorkerRecord(
                worker_id=name, name=name, role=role, model=MODEL, url="http://x", status=WorkerStatus.READY
            )
            await client.put(worker_key("default", name), encode(worker))
        await _wait(bus, 0)
        before_mb = rss_mb(planner.pid)
        planner_process = psutil.Process(planner.pid)
        planner_process.suspend()
        subject, data = turns_subject("default", MODEL), records(_DISTINCT)
        for n in range(count):
            await bus.nc.publish(subject, data[n % _DISTINCT])
            if n % 1000 == 999:
                await bus.js.publish(subject, data[n % _DISTINCT])  # waits for the stream
        sent = count + count // 1000
        await bus.nc.flush(timeout=30)
        cpu = planner_process.cpu_times()
        planner_process.resume()
        started_s = time.perf_counter()
        await _wait(bus, sent)
        took_s = time.perf_counter() - started_s
        used = planner_process.cpu_times()
        cpu_s = used.user + used.system - cpu.user - cpu.system
        return {
            "records": sent,
            "records_per_s": round(sent / took_s),
            "cpu_us_per_record": round(cpu_s / sent * 1e6, 1),
            "rss_before_mb": round(before_mb, 1),
            "rss_after_mb": round(rss_mb(planner.pid), 1),
            "effect_ms": await effect_ms(bus),
            "failover_s": await failover_s(bus, planner, start),
        }
    finally:
        for each in started:
            each.kill()
        await bus.close()
        await client.close()
        server.kill()
        etcd.kill()


async def effect_ms(bus: Bus, tries: int = 20) -> dict[str, float]:
    """From asking for new weights until a watcher of the bucket has the new table ready for decisions."""
    kv = await bus.js.key_value("PPD_TABLE")
    watcher = await kv.watchall()
    while await watcher.updates(timeout=5) is not None:
        pass
    took = []
    for n in range(tries):
        request = msgspec.json.encode({"slo_class": "batch", "ttft": 1, "tpot": 1 + n})
        started_s = time.perf_counter()
        answer = asyncio.create_task(
            bus.nc.request(planner_subject("default", "weights.set"), request, timeout=5)
        )
        entry = await watcher.updates(timeout=5)
        Table(decode(entry.value, TableSnapshot)).verdicts(1.0, 1.0 + n)
        took.append((time.perf_counter() - started_s) * 1e3)
        await answer
    await watcher.stop()
    took.sort()
    return {"p50": round(took[len(took) // 2], 1), "max": round(took[-1], 1)}


async def failover_s(bus: Bus, leader: PlannerProcess, start: Callable[[], PlannerProcess]) -> float:
    """From kill -9 of the leader until another one answers as the leader."""
    other = start()
    await asyncio.sleep(3)
    leader.kill()
    killed_s = time.perf_counter()
    while True:
        with contextlib.suppress(nats.errors.Error):
            if f"-{other.pid}-" in (await _status(bus))["planner"]:
                return round(time.perf_counter() - killed_s, 1)
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    alone = learner_alone(arguments.records)
    with tempfile.TemporaryDirectory() as folder:
        streamed = asyncio.run(through_jetstream(Path(folder), arguments.records))
    found = {
        "learner_alone": alone,
        "through_jetstream": streamed,
        "ratios": {"streamed_to_alone": round(streamed["records_per_s"] / alone["records_per_s"], 3)},
    }
    if arguments.json:
        print(json.dumps(found))
        return
    for part, figures in found.items():
        print(part)
        for name, value in figures.items():
            print(f"  {name:<20} {value}")


if __name__ == "__main__":
    main()
