"""The durable consumer of the turn records."""

import time

from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext

from ppd.core import streams
from ppd.core.names import PLANNER_DURABLE
from ppd.runtime.bus import Bus
from ppd.runtime.streams import ensure

BATCH = 1000
MAX_UNACKED = 20_000
_ACK_WAIT_S = 12.0  # a dead leader's turns are delivered again after this
_FETCH_S = 0.5
_INFO_EVERY_S = 2.0


class Turns:
    """Fetch, and acknowledge once what was fetched is saved. One leader's; a new one opens its own."""

    def __init__(self, bus: Bus, namespace: str, age_s: float, max_bytes: int) -> None:
        self._bus = bus
        self._stream = streams.turns(namespace, age_s, max_bytes)
        self._sub: JetStreamContext.PullSubscription | None = None
        self._asked_s = 0.0
        self.stream_id = ""  # differs when the stream was lost and made anew, and so its sequence numbers
        self.floor = 0  # all up to here is acknowledged
        self.lag = 0  # records in the stream that were not delivered yet

    async def open(self) -> None:
        """The stream and the durable consumer, made where they are missing."""
        info = await ensure(self._bus, self._stream, owner=True)
        self.stream_id = str(info.created)
        self._sub = await self._bus.js.pull_subscribe(
            self._stream.subjects[0],
            durable=PLANNER_DURABLE,
            stream=self._stream.name,
            config=ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT, ack_wait=_ACK_WAIT_S, max_ack_pending=MAX_UNACKED
            ),
        )
        await self._ask()

    async def fetch(self) -> list[Msg]:
        """At most BATCH records; none if none came within half a second."""
        if self._sub is None:
            raise RuntimeError("open() first")
        if time.monotonic() - self._asked_s > _INFO_EVERY_S:
            await self._ask()
        try:
            return await self._sub.fetch(BATCH, timeout=_FETCH_S)
        except (TimeoutError, NatsTimeoutError):
            return []

    async def _ask(self) -> None:
        """Raises NotFoundError when the stream or the consumer is gone."""
        info = await self._bus.js.consumer_info(self._stream.name, PLANNER_DURABLE)
        self._asked_s = time.monotonic()
        self.floor = info.ack_floor.stream_seq if info.ack_floor else 0
        self.lag = info.num_pending or 0

    async def newest(self) -> int:
        """The sequence number of the stream's newest message; 0 if there was none."""
        info = await self._bus.js.stream_info(self._stream.name)
        return int(info.state.last_seq)

    async def ack(self, messages: list[Msg]) -> None:
        for message in messages:
            await message.ack()

    async def close(self) -> None:
        if self._sub is not None:
            await self._sub.unsubscribe()
            self._sub = None
