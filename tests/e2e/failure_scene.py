"""A stack of simulated engines that things are done to, and what is looked at."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from ppd.core import names
from ppd.core.names import WorkerStatus
from ppd.core.records import WorkerRecord, decode
from ppd.runtime.etcd import Etcd, EtcdError
from tests.e2e.failure_load import Load, fault, gauge
from tests.e2e.local_stack import LocalStack
from tests.support.processes import commands, send_signal

MODEL = "m"
ENGINES = {"p0", "p1", "d0", "d1"}
_IDLE_S = 60.0  # by then a lease that nobody asked to end has ended by itself


@contextmanager
def started(home: Path, **settings: str) -> Iterator[LocalStack]:
    """2P2D behind one frontend, started by `ppd up`; `settings` are those of its services."""
    stack = LocalStack(home, **settings)
    try:
        # No KV is held for a pull-back after a turn; at this speed a lease lasts for 24 s.
        engines = ("--speed", "0.25", "--lease-s", "6", "--no-pullback")
        up = stack.up("--engine", "sim", "--model", MODEL, "--placement", "2P2D", "--", *engines)
        assert up.returncode == 0, up.stdout + up.stderr
        yield stack
    finally:
        stack.ppd("down")
        send_signal(stack.processes(), signal.SIGKILL)


@contextmanager
def held(*pids: int) -> Iterator[None]:
    """Stopped: connections stay open and nothing answers."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


class Scene:
    """The stack as a test sees it."""

    def __init__(self, stack: LocalStack, http: aiohttp.ClientSession) -> None:
        self.stack = stack
        self.http = http
        self._etcd = Etcd([stack.state()["etcd"]])

    async def close(self) -> None:
        for url in (await self.engines()).values():
            await fault(self.http, url)
        await self._etcd.close()

    async def engines(self) -> dict[str, str]:
        """The addresses of the ready engines, by name."""
        found, _ = await self._etcd.list(names.workers_prefix("default"))
        records = [decode(value, WorkerRecord) for value in found.values()]
        return {each.name: each.url for each in records if each.status is WorkerStatus.READY}

    def engine_pid(self, name: str) -> int:
        """Of the engine itself, not of its agent."""
        found = commands(self.stack.processes())
        pids = [
            pid
            for pid, line in found.items()
            if "workers.sim.server" in line and any(part.startswith(f"{name}-") for part in line)
        ]
        assert len(pids) == 1, found
        return pids[0]

    async def health(self) -> dict[str, Any]:
        """The frontend's; empty where it does not answer."""
        try:
            async with self.http.get(f"{self.stack.url}/health") as answer:
                return dict(await answer.json())
        except (aiohttp.ClientError, TimeoutError):
            return {}

    async def until(self, condition: Callable[[], Awaitable[bool]], within_s: float = 120) -> None:
        """An etcd that does not answer in time is asked again."""
        async with asyncio.timeout(within_s):
            while True:
                with contextlib.suppress(EtcdError):
                    if await condition():
                        return
                await asyncio.sleep(0.2)

    async def whole(self) -> bool:
        return set(await self.engines()) == ENGINES

    async def uses(self) -> dict[str, float]:
        """The share of each engine's KV that somebody holds."""
        engines = await self.engines()
        return {
            name: await gauge(self.http, url, "vllm:kv_cache_usage_perc") for name, url in engines.items()
        }

    async def idle(self) -> bool:
        return await self.uses() == dict.fromkeys(ENGINES, 0.0)

    @asynccontextmanager
    async def load(self, **options: int) -> AsyncIterator[Load]:
        """Streams that are under way when the block begins; at its end all was well and nobody holds KV."""
        async with Load(self.stack.url, MODEL, **options) as load:
            await load.more(20)
            yield load
        assert load.failures == []
        with contextlib.suppress(TimeoutError):
            await self.until(self.idle, _IDLE_S)
        uses = await self.uses()
        assert uses == dict.fromkeys(ENGINES, 0.0), f"KV is held: {uses}"

    async def takes_part_again(self, load: Load, name: str) -> None:
        """`name` is registered, and turns go to it."""
        await self.until(self.whole)
        served = load.prefilled_by if name.startswith("p") else load.decoded_by
        before = served[name]

        async def more() -> bool:
            return served[name] > before

        await self.until(more)


@asynccontextmanager
async def scene_of(stack: LocalStack) -> AsyncIterator[Scene]:
    """All engines are there at the beginning, and sound again at the end."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as http:
        scene = Scene(stack, http)
        await scene.until(scene.whole)
        yield scene
        await scene.close()
