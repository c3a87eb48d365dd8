"""What the frontend listens to on NATS: the workers' load reports, and the planner's tables."""

import asyncio
from typing import Any

from nats.aio.msg import Msg

from controlplane.engines.cluster import Cluster
from controlplane.shared.tables import Tables
from ppd.core import names
from ppd.core.records import BadRecordError, WorkerLoad, decode
from ppd.runtime.bus import Bus

_CHECK_S = 30.0


async def watch_loads(bus: Bus, namespace: str, cluster: Cluster) -> None:
    """For a Supervisor. The subscription outlives reconnects by itself."""
    await bus.connect()
    loop = asyncio.get_running_loop()

    async def on_message(message: Msg) -> None:
        try:
            cluster.report(decode(message.data, WorkerLoad), loop.time())
        except BadRecordError:
            pass

    subscription = await bus.nc.subscribe(names.load_subject(namespace, "") + "*", cb=on_message)
    try:
        await asyncio.Event().wait()
    finally:
        await subscription.unsubscribe()


async def watch_tables(bus: Bus, namespace: str, tables: Tables) -> None:
    """For a Supervisor. Lists again from time to time, since a watch may fall silent over an outage."""
    await bus.connect()
    bucket = await bus.kv(names.stream_name(names.TABLE_BUCKET, namespace), names.TABLE_HISTORY)
    while True:
        watcher: Any = await bucket.watchall(ignore_deletes=True)
        try:
            async with asyncio.timeout(_CHECK_S):
                while True:
                    entry = await watcher.updates(timeout=_CHECK_S)
                    if entry is not None and entry.value:
                        tables.update(entry.key, entry.value)
        except TimeoutError:
            pass
        finally:
            await watcher.stop()
