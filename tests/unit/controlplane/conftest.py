"""A frontend in this process, listening on a free port, before fake engines."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from controlplane.app import Frontend
from controlplane.http.server import Server, bind
from controlplane.processes.serve import limits_of
from controlplane.settings import FrontendSettings
from ppd.core.names import Role, WorkerStatus
from ppd.core.records import WorkerRecord
from tests.unit.controlplane.fakes import FakeEngine, Fault

MODEL = "m"


def record(engine: FakeEngine, role: Role, name: str, **fields: Any) -> WorkerRecord:
    return WorkerRecord(
        worker_id=f"{name}-1",
        name=name,
        role=role,
        model=fields.pop("model", MODEL),
        url=engine.url,
        status=fields.pop("status", WorkerStatus.READY),
        engine_id=name,
        **fields,
    )


class Stack:
    """A frontend and its fake engines. Neither etcd nor NATS is there."""

    def __init__(self, frontend: Frontend, server: Server, port: int, engines: dict[str, FakeEngine]) -> None:
        self.frontend = frontend
        self.server = server
        self.port = port
        self.engines = engines
        self.url = f"http://127.0.0.1:{port}"
        self.http = aiohttp.ClientSession()

    async def chat(self, *messages: str | dict[str, Any], **fields: Any) -> aiohttp.ClientResponse:
        """Post a chat; strings are user and assistant messages in turn."""
        listed = [
            {"role": "assistant" if i % 2 else "user", "content": message}
            if isinstance(message, str)
            else message
            for i, message in enumerate(messages)
        ]
        headers = fields.pop("headers", None)
        body = {"model": MODEL, "messages": listed, **fields}
        return await self.http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)

    async def ask(self, *messages: str | dict[str, Any], **fields: Any) -> tuple[str, str, dict[str, Any]]:
        """Route, reason and answer of a chat that is not streamed."""
        async with await self.chat(*messages, **fields) as response:
            answer = await response.json()
            return response.headers.get("x-ppd-route", ""), response.headers.get("x-ppd-reason", ""), answer


@asynccontextmanager
async def running(placement: dict[str, Role], **options: Any) -> AsyncIterator[Stack]:
    engines = {name: await FakeEngine(name).start() for name in placement}
    settings = FrontendSettings(etcd=["127.0.0.1:1"], nats=["nats://127.0.0.1:1"], **options)
    frontend = Frontend(settings, None, logging.getLogger("test"))
    frontend.fleet.update(
        {f"{name}-1": record(engines[name], role, name) for name, role in placement.items()}
    )
    sweeper = asyncio.create_task(frontend.upkeep.run())
    server, listener = Server(frontend, 1, limits_of(settings)), bind("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve([listener]))
    await server.started.wait()
    stack = Stack(frontend, server, listener.getsockname()[1], engines)
    try:
        yield stack
    finally:
        await stack.http.close()
        server.stop()
        await serving
        sweeper.cancel()
        frontend.cluster.close()
        for engine in engines.values():
            await engine.stop()


def trace(stack: Stack) -> InMemorySpanExporter:
    """Have the frontend trace; its spans end up in what is returned."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stack.frontend.lifecycle.tracer = provider.get_tracer("test")
    return exporter


P_D = {"p0": Role.PREFILL, "d0": Role.DECODE}
P_2D = {"p0": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
TWO_P_D = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE}
QUICK: dict[str, Any] = {
    "prefill_s": 0.3,
    "first_byte_s": 0.3,
    "idle_s": 0.3,
    "connect_s": 5.0,
    "suspect_s": 1.0,
}


def break_the_first(stack: Stack, kind: str, after: int = 0, pool: tuple[str, str] = ("d0", "d1")) -> None:
    """Whichever engine of the two is asked first breaks; the other one is sound."""
    for name, other in (pool, pool[::-1]):
        stack.engines[name].faults.append(Fault(kind, after=after))
        stack.engines[name].on_request = stack.engines[other].faults.clear


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """1P1D."""
    async with running(P_D) as made:
        yield made
