"""Planner processes for tests, workers for them to see, and turns for them to count."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import nats.errors

from ppd.core import streams
from ppd.core.names import Reason, Role, Route, WorkerStatus, planner_subject, turns_subject, worker_key
from ppd.core.records import TurnRecord, WorkerRecord, encode
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from ppd.runtime.streams import ensure

DEADLINE_S = 40.0
MODEL = "test/model"


class PlannerProcess:
    """`ppd planner` as a process of its own."""

    def __init__(self, folder: Path, etcd: str, nats_url: str, namespace: str, *flags: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "planner.log"
        command = [sys.executable, "-m", "ppd.cli.main", "planner", "--etcd", etcd, "--nats", nats_url]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--namespace", namespace, "--port", "0", *flags], stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self._process.terminate()
        return self._process.wait(15)


async def eventually(what: str, check: Callable[[], Awaitable[Any]], deadline_s: float = DEADLINE_S) -> Any:
    """The first true result of `check`; a failing test names `what` never came."""
    until_s = time.monotonic() + deadline_s
    last: object = None
    while time.monotonic() < until_s:
        try:
            last = await check()
            if last:
                return last
        except (nats.errors.Error, TimeoutError) as error:
            last = error
        await asyncio.sleep(0.1)
    raise AssertionError(f"never came: {what}; last seen: {last!r}")


async def ask(bus: Bus, namespace: str, verb: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of the planner that leads; an error answer comes as {"error": text, "code": code}."""
    message = await bus.nc.request(
        planner_subject(namespace, verb), msgspec.json.encode(request or {}), timeout=5
    )
    if message.headers and "Nats-Service-Error" in message.headers:
        headers = message.headers
        return {"error": headers["Nats-Service-Error"], "code": headers["Nats-Service-Error-Code"]}
    answer: dict[str, Any] = msgspec.json.decode(message.data)
    return answer


async def add_worker(etcd: Etcd, namespace: str, name: str, role: Role, model: str = MODEL) -> None:
    record = WorkerRecord(
        worker_id=name, name=name, role=role, model=model, url="http://127.0.0.1:1", status=WorkerStatus.READY
    )
    await etcd.put(worker_key(namespace, name), encode(record))


def turn(number: int, **fields: Any) -> TurnRecord:
    """A later turn that went well."""
    default: dict[str, Any] = {
        "request_id": f"r{number}",
        "ended_unix_s": 1_700_000_000.0 + number / 10,
        "model": MODEL,
        "placement": "1P1D",
        "path": Route.D_LOCAL,
        "reason": Reason.TABLE,
        "turn": 2,
        "n_in_tokens": 100,
        "n_ctx_tokens": 1000,
        "n_out_tokens": 100,
        "n_prompt_tokens": 1100,
        "qps": 1.0,
        "ttft_ms": 50.0,
        "tpot_ms": 10.0,
    }
    return TurnRecord(**(default | fields))


async def record_turns(bus: Bus, namespace: str, records: list[TurnRecord]) -> None:
    """As a frontend does: into a stream that it makes where the leader has not yet, each one acknowledged."""
    await ensure(bus, streams.turns(namespace))
    for record in records:
        await bus.js.publish(turns_subject(namespace, record.model), encode(record))
