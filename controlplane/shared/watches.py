"""What the frontend listens to on NATS: the workers' load reports, and the planner's tables."""

import asyncio

from nats.aio.msg import Msg

from controlplane.engines.cluster import Cluster
from controlplane.shared.tables import Tables
from ppd.core import names, streams
from ppd.core.records import BadRecordError, WorkerLoad, decode
from ppd.runtime.bucket_watch import watch_bucket
from ppd.runtime.bus import Bus


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
    """For a Supervisor."""
    await watch_bucket(bus, streams.tables(namespace), tables.update)
