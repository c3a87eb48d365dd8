"""Asks etcd, NATS, the planner and the frontend, all at once, each within a few seconds."""

import asyncio
import logging
import uuid
from typing import Any

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig
from nats.js.errors import KeyNotFoundError, NotFoundError

from ppd.cli.stack.probes import ask_planner, http_get, registered
from ppd.cli.stack.state import Phase, StackState, alive
from ppd.cli.status.report import Part, Report, TableVersion, WorkerStatusRow
from ppd.core.names import SESSIONS_BUCKET, TABLE_BUCKET, load_subject, stream_name
from ppd.core.records import BadRecordError, TableSnapshot, WorkerLoad, WorkerRecord, decode
from ppd.runtime.bus import Bus
from ppd.runtime.endpoints import redacted
from ppd.runtime.etcd import Etcd

_CONNECT_S = 3.0
_LISTEN_S = 0.8  # workers report four times a second

_silent = logging.getLogger("ppd.cli.status")  # a part that is down is a finding here, not an event to log
_silent.disabled = True


async def collect(
    etcd: list[str], nats_servers: list[str], namespace: str, frontend: str, stack: StackState | None
) -> Report:
    """Everything that can be learned now; never raises for a part that is down."""
    workers, from_nats, (health_status, health) = await asyncio.gather(
        _workers(etcd, namespace), _from_nats(nats_servers, namespace), http_get(f"{frontend}/health")
    )
    ready_status, _ = await http_get(f"{frontend}/ready") if health_status else (0, None)
    loads = from_nats.loads if from_nats else {}
    parts = [
        Part(name="etcd", ok=workers is not None, where=", ".join(etcd)),
        Part(name="nats", ok=from_nats is not None, where=redacted(", ".join(nats_servers))),
        _planner(from_nats.planner if from_nats else None),
        Part(name="frontend", ok=ready_status == 200, where=redacted(frontend), detail=_ready(ready_status)),
    ]
    parts += _processes(stack, {part.name for part in parts}, workers)
    return Report(
        ok=all(part.ok for part in parts),
        parts=parts,
        workers=None
        if workers is None
        else [WorkerStatusRow(record=w, load=loads.get(w.worker_id)) for w in workers],
        tables=from_nats.tables if from_nats else None,
        sessions=from_nats.sessions if from_nats else None,
        planner=from_nats.planner if from_nats else None,
        frontend=health,
        stack=stack,
    )


def _ready(status: int) -> str:
    return {0: "does not answer", 200: "ready"}.get(status, f"answers, but is not ready ({status})")


def _planner(answer: Any) -> Part:
    if not isinstance(answer, dict):
        return Part(name="planner", ok=False, detail="does not answer")
    trouble = str(answer.get("trouble") or "")
    counted = f"{answer.get('role', '')}, {answer.get('turns', 0)} turns counted"
    return Part(
        name="planner", ok=not trouble, where=str(answer.get("planner", "")), detail=trouble or counted
    )


def _processes(stack: StackState | None, known: set[str], workers: list[WorkerRecord] | None) -> list[Part]:
    """The processes of the local stack that answer to nobody but their supervisor. A worker's agent outlives
    its engine: it is up while it is registered, which it is not while the engine starts again.
    """
    if stack is None:
        return []
    members = [member for member in stack.members if member.name not in known]
    supervisor = stack.supervisor
    lives = alive(supervisor)
    parts = [
        Part(
            name="supervisor",
            ok=lives,
            where=f"pid {supervisor.pid}",
            detail=stack.phase if lives else "dead; `ppd up` or `ppd down` clears up",
        )
    ]
    registered_names = None if workers is None else {worker.name for worker in workers}
    for member in members:
        phase: str = member.phase if alive(member) else "dead"
        if phase == Phase.READY and registered_names is not None and member.name not in registered_names:
            phase = "its engine is down or starts again"
        restarts = f", restarted {member.restarts} times" if member.restarts else ""
        ok = phase == Phase.READY
        parts.append(Part(name=member.name, ok=ok, where=f"pid {member.pid}", detail=f"{phase}{restarts}"))
    return parts


async def _workers(endpoints: list[str], namespace: str) -> list[WorkerRecord] | None:
    etcd = Etcd(endpoints)
    try:
        found = await registered(etcd, namespace)
        if found is None:  # etcd may stall for seconds on a busy machine: one late answer is no outage
            found = await registered(etcd, namespace)
        return found
    finally:
        await etcd.close()


class _FromNats:
    def __init__(self) -> None:
        self.loads: dict[str, WorkerLoad] = {}
        self.tables: list[TableVersion] = []
        self.sessions = 0
        self.planner: Any = None

    async def on_load(self, message: Msg) -> None:
        try:
            load = decode(message.data, WorkerLoad)
        except BadRecordError:
            return
        self.loads[load.worker_id] = load


async def _from_nats(servers: list[str], namespace: str) -> _FromNats | None:
    """None if NATS cannot be asked."""
    bus = Bus(servers, "ppd-status", _silent)
    found = _FromNats()
    try:
        await asyncio.wait_for(bus.connect(), _CONNECT_S)
        # `*` is escaped as a worker's name would be; here it is the wildcard.
        every = load_subject(namespace, "x").removesuffix("x") + "*"
        await bus.nc.subscribe(every, cb=found.on_load)
        found.planner, _, found.sessions, found.tables = await asyncio.gather(
            ask_planner(bus, namespace, "status"),
            asyncio.sleep(_LISTEN_S),
            _sessions(bus, namespace),
            _tables(bus, namespace),
        )
        return found
    except (TimeoutError, OSError, nats.errors.Error):
        return None
    finally:
        await bus.close()


async def _sessions(bus: Bus, namespace: str) -> int:
    """Conversations that frontends share: keys of one level. Those of explicit ids lie a level below."""
    bucket = stream_name(SESSIONS_BUCKET, namespace)
    config = ConsumerConfig(
        name=f"ppd-status-{uuid.uuid4().hex}",
        filter_subject=f"$KV.{bucket}.*",
        inactive_threshold=_CONNECT_S,
        mem_storage=True,
    )
    try:
        consumer = await bus.js.add_consumer(f"KV_{bucket}", config)
        await bus.js.delete_consumer(f"KV_{bucket}", consumer.name)
    except NotFoundError:
        return 0
    return int(consumer.num_pending or 0)


async def _tables(bus: Bus, namespace: str) -> list[TableVersion]:
    bucket = stream_name(TABLE_BUCKET, namespace)
    prefix = f"$KV.{bucket}."
    try:
        info = await bus.js.stream_info(f"KV_{bucket}", subjects_filter=prefix + ">")
        kv = await bus.js.key_value(bucket)
    except NotFoundError:
        return []
    tables = []
    for subject in sorted(info.state.subjects or {}):
        try:
            table = decode((await kv.get(subject.removeprefix(prefix))).value or b"", TableSnapshot)
        except (KeyNotFoundError, BadRecordError):
            continue
        tables.append(
            TableVersion(
                model=table.model,
                placement=table.placement,
                version=table.version,
                source=table.source,
                frozen=table.frozen,
            )
        )
    return tables
