"""Whether a part of the stack serves: asked over its port or in the registry, not guessed from a pid."""

import asyncio
import logging
from typing import Any

import aiohttp
import msgspec

from ppd.core.names import WorkerStatus, planner_subject, workers_prefix
from ppd.core.records import BadRecordError, WorkerRecord, decode
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd, EtcdError

_DEADLINE_S = 3.0
_silent = logging.getLogger("ppd.cli.probes")  # a part that is down is a finding here, not an event to log
_silent.disabled = True


async def http_get(url: str) -> tuple[int, Any]:
    """Status and JSON of `url`; (0, None) if there is no answer, and None where it is no JSON."""
    timeout = aiohttp.ClientTimeout(total=_DEADLINE_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            body = await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0, None
    try:
        return answer.status, msgspec.json.decode(body)
    except msgspec.DecodeError:
        return answer.status, None


async def http_ok(url: str) -> bool:
    return (await http_get(url))[0] == 200


async def registered(etcd: Etcd, namespace: str) -> list[WorkerRecord] | None:
    """The workers in etcd by name; None if etcd cannot be asked. Records that cannot be read are left out."""
    try:
        listed, _ = await etcd.list(workers_prefix(namespace))
    except EtcdError:
        return None
    records = []
    for value in listed.values():
        try:
            records.append(decode(value, WorkerRecord))
        except BadRecordError:
            continue
    return sorted(records, key=lambda record: (record.name, record.started_unix_s))


async def worker_ready(etcd: str, namespace: str, name: str, since_unix_s: float) -> bool:
    """Whether an incarnation of `name` that began after `since_unix_s` is registered as ready."""
    client = Etcd([etcd])
    try:
        records = await registered(client, namespace)
    finally:
        await client.close()
    return any(
        record.name == name and record.status == WorkerStatus.READY and record.started_unix_s >= since_unix_s
        for record in records or []
    )


async def ask_planner(bus: Bus, namespace: str, verb: str) -> Any:
    """The planner's answer to `status` and the like; None if it gives none within the deadline."""
    try:
        reply = await bus.nc.request(planner_subject(namespace, verb), b"", timeout=_DEADLINE_S)
        return msgspec.json.decode(reply.data)
    except Exception:
        return None


async def planner_ready(nats: str, namespace: str) -> bool:
    bus = Bus([nats], "ppd-up", _silent)
    try:
        await asyncio.wait_for(bus.connect(), _DEADLINE_S)
        return await ask_planner(bus, namespace, "status") is not None
    except TimeoutError:
        return False
    finally:
        await bus.close()


async def servable(endpoint: str, model: str) -> bool:
    """Whether the frontend serves the model, by an engine that is meant to decode."""
    status, health = await http_get(f"{endpoint}/health")
    found = health.get("models", {}).get(model) if status == 200 and isinstance(health, dict) else None
    return bool(found and (found["ready"]["decode"] or found["ready"]["replica"]))
