"""Load: connections with one turn after another each; first-byte times and the router's CPU."""

import asyncio
import time
from dataclasses import dataclass, field

import psutil
import uvloop

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    name: str
    connections: int
    turns: int  # of each connection
    stream: bool
    gap_ms: float
    begin_ms: float = 0.0  # over which the connections begin
    chunks: int = 64
    batched: bool = False  # the engine sends the chunks of all streams at the steps of one clock


@dataclass
class Result:
    """What one run of a case gave."""

    cpu_us: float  # of the router's process, per turn
    system_us: float  # of that, in the kernel
    first_ms: list[float] = field(default_factory=list)
    failed: int = 0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.first_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Client(asyncio.Protocol):
    """One connection; a turn ends with the last chunk or the announced length."""

    def __init__(self) -> None:
        self._done: asyncio.Future[bool] | None = None
        self._sent_s = self.first_s = 0.0
        self._tail = b""
        self._left = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def close(self) -> None:
        self._transport.close()

    async def turn(self, request: bytes) -> bool:
        self._done = asyncio.get_running_loop().create_future()
        self.first_s, self._tail, self._left = 0.0, b"", -1
        self._sent_s = time.perf_counter()
        self._transport.write(request)
        return await asyncio.wait_for(self._done, 60)

    def data_received(self, data: bytes) -> None:
        done = self._done
        if done is None or done.done():
            return
        if not self.first_s:
            if b"data: " not in data and b'"choices"' not in data:
                return  # the head alone is no first byte of the answer
            self.first_s = time.perf_counter() - self._sent_s
        self._tail = (self._tail + data)[-64:]
        if self._tail.endswith(b"0\r\n\r\n") or data.endswith(b"}"):
            done.set_result(b"error" not in data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(False)


def _request(stream: bool, number: int) -> bytes:
    body = (
        b'{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user",'
        b'"content":"Question %d: what is the capital of Japan, and why?"}],"max_tokens":64,"stream":%b}'
        % (number, b"true" if stream else b"false")
    )
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


async def _drive(port: int, case: Case, turns: int) -> tuple[list[float], int]:
    loop = asyncio.get_running_loop()
    first: list[float] = []
    failed = 0

    async def one(number: int) -> None:
        nonlocal failed
        # Evenly, by the golden ratio, so that the chunks of all streams, too, come evenly.
        await asyncio.sleep(number * _GOLDEN % 1.0 * case.begin_ms / 1e3)
        _, client = await loop.create_connection(Client, "127.0.0.1", port)
        for turn in range(turns):
            if await client.turn(_request(case.stream, number * 1_000_003 + turn)):
                first.append(client.first_s * 1e3)
            else:
                failed += 1
        client.close()

    await asyncio.gather(*(one(i) for i in range(case.connections)))
    return first, failed


def _cpu_s(process: psutil.Process) -> tuple[float, float]:
    """User and system time."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user for each in times), sum(each.system for each in times)


def direct(port: int, case: Case) -> Result:
    """The same load on an engine itself: what of the first byte's time is not the router's."""
    uvloop.run(_drive(port, case, max(1, case.turns // 10)))
    first, failed = uvloop.run(_drive(port, case, case.turns))
    return Result(0.0, 0.0, first, failed)


def run(port: int, pid: int, case: Case) -> Result:
    """One run, after a short warm-up."""
    uvloop.run(_drive(port, case, max(1, case.turns // 10)))
    process = psutil.Process(pid)
    user_s, system_s = _cpu_s(process)
    first, failed = uvloop.run(_drive(port, case, case.turns))
    user_after_s, system_after_s = _cpu_s(process)
    to_us = 1e6 / (case.connections * case.turns)
    system_us = (system_after_s - system_s) * to_us
    return Result((user_after_s - user_s) * to_us + system_us, system_us, first, failed)
