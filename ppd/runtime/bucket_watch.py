"""Watches a bucket of NATS over outages: the newest value of each key, then every new one as it is written.

nats-py's own KV watch notices a restarted server, or a deleted bucket, only when heartbeats are missing (10 s
to 20 s), and leaves its consumer behind at the server for five minutes each time it stops or begins again.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable

import nats.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from ppd.core.streams import Stream
from ppd.runtime.bus import CALL_DEADLINE_S, Bus
from ppd.runtime.streams import ensure
from ppd.runtime.tasks import backoff_s

_CHECK_S = 10.0  # for a consumer that was deleted while its stream was not
_INACTIVE_S = 30.0  # after that NATS drops the consumer of a process that died
_MAX_WAIT_S = 2.0
_ERRORS = (nats.errors.Error, TimeoutError)

Take = Callable[[str, bytes], None]  # key, value


async def watch_bucket(bus: Bus, stream: Stream, take: Take) -> None:
    """Never returns. After each outage, and when the bucket was deleted and is back, `take` gets the newest
    value of every key again. Deleted keys are passed over."""
    await bus.connect()
    waits = backoff_s()
    async with bus.changes(stream.name) as changed:
        while True:
            await bus.connect()
            changed.clear()
            try:
                async with _consumer(bus, stream, take, changed) as name:
                    waits = backoff_s()
                    await _while_it_lives(bus, stream, name, changed)
            except _ERRORS as error:
                bus.log.warning("watching %s again: %s", stream.bucket, str(error) or type(error).__name__)
                await _first(changed, min(next(waits), _MAX_WAIT_S))


@contextlib.asynccontextmanager
async def _consumer(bus: Bus, stream: Stream, take: Take, changed: asyncio.Event) -> AsyncIterator[str]:
    """A push consumer, by its name, from its creation to its deletion. Sets `changed` where a message was
    missed."""
    name = f"ppd-{uuid.uuid4().hex}"
    prefix = stream.subjects[0].removesuffix(">")
    received = 0

    async def on_message(message: Msg) -> None:
        nonlocal received
        received += 1
        if message.metadata.sequence.consumer != received:
            changed.set()
        elif message.data and not (message.headers and "KV-Operation" in message.headers):
            take(message.subject.removeprefix(prefix), message.data)

    await ensure(bus, stream)
    inbox = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(inbox, cb=on_message)
    try:
        await bus.js.add_consumer(
            stream.name,
            ConsumerConfig(
                name=name,
                deliver_subject=inbox,
                filter_subject=stream.subjects[0],
                deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=_INACTIVE_S,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        yield name
    finally:
        with contextlib.suppress(*_ERRORS):
            await asyncio.wait_for(subscription.unsubscribe(), CALL_DEADLINE_S)
        if bus.connected:  # else it goes when it has been inactive
            with contextlib.suppress(*_ERRORS):
                await bus.js.delete_consumer(stream.name, name)


async def _while_it_lives(bus: Bus, stream: Stream, consumer: str, changed: asyncio.Event) -> None:
    while not await _first(changed, _CHECK_S):
        if bus.connected:  # else `changed` is set once it is again
            try:
                await bus.js.consumer_info(stream.name, consumer)
            except NotFoundError:
                return


async def _first(changed: asyncio.Event, wait_s: float) -> bool:
    """Wait for `changed`, at most `wait_s`; whether it was set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), wait_s)
    return changed.is_set()
