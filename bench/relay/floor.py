"""The least that any relay on Python costs: bytes from one socket to another, without HTTP, policy or a hop
through P. `python -m bench.relay.floor PORT ENGINE_PORT`."""

import asyncio
import sys

import uvloop


class _Side(asyncio.Protocol):
    """One of a connection's two sides; what comes before the other is there waits."""

    def __init__(self) -> None:
        self.other: asyncio.Transport | None = None
        self.waiting: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.other.write(data) if self.other else self.waiting.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class _Client(_Side):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = asyncio.create_task(self._connect())

    async def _connect(self) -> None:
        _, engine = await asyncio.get_running_loop().create_connection(_Side, "127.0.0.1", int(sys.argv[2]))
        self.other, engine.other = engine.transport, self.transport
        self.other.writelines(self.waiting)


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(
        _Client, "127.0.0.1", int(sys.argv[1]), backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
