"""etcd and NATS of a test's own, with a planner on them."""

from collections.abc import Callable
from typing import Any

from ppd.core.names import Role, table_key
from ppd.core.records import TableSnapshot, decode
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from tests.support.planners import MODEL, PlannerProcess, add_worker, ask, eventually
from tests.support.servers import EtcdServer, NatsServer

KEY = table_key(MODEL, "1P1D")


class Stack:
    """Servers of the test's own, with a planner on them."""

    def __init__(
        self, etcd: EtcdServer, nats: NatsServer, namespace: str, start: Callable[..., PlannerProcess]
    ) -> None:
        self.etcd, self.nats, self.namespace = etcd, nats, namespace
        self._start = start
        self.bus = Bus([nats.url], "test")

    def start_planner(self, *flags: str) -> PlannerProcess:
        return self._start(*flags, etcd=self.etcd.address, nats=self.nats.url)

    async def add_pair(self) -> None:
        client = Etcd([self.etcd.address])
        await add_worker(client, self.namespace, "p0", Role.PREFILL)
        await add_worker(client, self.namespace, "d0", Role.DECODE)
        await client.close()

    async def put(self, data: bytes) -> None:
        kv = await self.bus.js.key_value(f"PPD_TABLE_{self.namespace}")
        await kv.put(KEY, data)

    async def published(self) -> TableSnapshot:
        kv = await self.bus.js.key_value(f"PPD_TABLE_{self.namespace}")
        return decode((await kv.get(KEY)).value or b"", TableSnapshot)

    async def status(self) -> dict[str, Any]:
        return await ask(self.bus, self.namespace, "status")

    async def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async def check() -> Any:
            status = await self.status()
            return status if holds(status) else None

        found: dict[str, Any] = await eventually(what, check, 60)
        return found

    async def lead(self) -> PlannerProcess:
        """A planner that leads and has published the pair's table."""
        self.etcd.start()
        self.nats.start()
        await self.add_pair()
        planner = self.start_planner("--explore", "0.01")
        await self.bus.connect()
        await self.until("a table", lambda status: bool(status["tables"]))
        return planner
