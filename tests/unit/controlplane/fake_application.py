"""An application before a real server of the frontend's."""

import asyncio

from controlplane.http.context import Limits
from controlplane.http.exchange import Exchange
from controlplane.http.server import Server, bind


class FakeApplication:
    """Answers with what it got: whole, or as a stream where the path says so."""

    def __init__(self) -> None:
        self.seen: list[Exchange] = []
        self.lost_ones = 0
        self.go = asyncio.Event()
        self.go.set()

    def judge(self, exchange: Exchange) -> None:
        return None

    def lost(self, exchange: Exchange) -> None:
        self.lost_ones += 1

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        exchange.watch()
        if exchange.request.refusal is not None:
            exchange.response.fail(exchange.request.refusal, [])
            return
        await self.go.wait()
        if exchange.request.path == "/break":
            raise RuntimeError("as the test wants it")
        if exchange.request.path == "/stream":
            exchange.response.start(200, [(b"x-a", b"b")])
            exchange.response.push(b"one")
            await asyncio.sleep(0)
            exchange.response.push(b"two")
            exchange.response.end(b"end")
        else:
            exchange.response.send(200, [], exchange.request.body)


class Served:
    def __init__(self, **limits: float) -> None:
        self.application = FakeApplication()
        self.server = Server(self.application, 1, Limits(**limits))  # type: ignore[arg-type]

    async def __aenter__(self) -> "Served":
        listener = bind("127.0.0.1", 0)
        self._task = asyncio.create_task(self.server.serve([listener]))
        await self.server.started.wait()
        self.port: int = listener.getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.application.go.set()
        self.server.stop()
        await self._task

    async def talk(self, *parts: bytes, until: bytes = b"") -> bytes:
        """What comes back, until the server closes or `until` was in it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = b""
        try:
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.02)
            async with asyncio.timeout(20):
                while not (until and until in data):
                    more = await reader.read(65536)
                    if not more:
                        break
                    data += more
        finally:
            writer.close()
        return data
