"""The engine model in real time: wakes at each step's end, and hands new tokens to who waits for them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf

from ppd.core.engine import Engine, EventKind, Request
from ppd.core.engine.request import Where

_STALL_POLL_S = 0.02
Pull = Callable[[Request], Awaitable[bool]]


class EngineStream:
    """One request under way: `tokens` is called as its tokens appear, `ended` is set when it is over."""

    def __init__(self, request: Request, tokens: Callable[[int, int], None], pull: Pull | None) -> None:
        self.request = request
        self.ended = asyncio.Event()
        self.began_s = time.monotonic()
        self._tokens = tokens
        self._sent = 0
        self.pull = pull

    def push(self) -> None:
        generated = self.request.generated
        if generated > self._sent:
            first, self._sent = self._sent, generated
            self._tokens(first, generated)


class Driver:
    """Owns the engine; all calls come from the event loop's thread."""

    def __init__(self, engine: Engine, speed: float = 1.0) -> None:
        self.engine = engine
        self.stalled = False
        self.finished = 0
        self.ttft_s = 0.0
        self.ttft_count = 0
        self.tpot_s = 0.0
        self.tpot_count = 0
        self.lease_expired = 0
        self.pulled_tokens = 0
        self._speed = speed
        self._origin_s = time.monotonic()
        self._streams: dict[str, EngineStream] = {}
        self._woken = asyncio.Event()
        self._pulls: set[asyncio.Task[None]] = set()

    def real_s(self, engine_s: float) -> float:
        return engine_s / self._speed

    def now_s(self) -> float:
        """The engine's time: real time by the speed."""
        return (time.monotonic() - self._origin_s) * self._speed

    def submit(self, stream: EngineStream) -> None:
        """Raises RequestTooLargeError if it can never run."""
        self.engine.submit(stream.request, self.now_s())
        self._streams[stream.request.request_id] = stream
        self._woken.set()

    def abort(self, request_id: str) -> bool:
        """Stop a request; a finished one whose blocks are leased gives them back. False if it is unknown."""
        stream = self._streams.pop(request_id, None)
        if stream is None:
            released = self.engine.release(request_id, self.now_s())
            self._woken.set()
            return released
        if stream.request.where is not Where.DONE:
            self.engine.abort(stream.request, self.now_s())
        stream.ended.set()
        self._woken.set()
        return True

    def release(self, request_id: str) -> bool:
        released = self.engine.release(request_id, self.now_s())
        self._woken.set()
        return released

    async def run(self) -> None:
        """Never returns."""
        while True:
            self._woken.clear()
            if self.stalled:
                began_s = time.monotonic()
                await asyncio.sleep(_STALL_POLL_S)
                self._origin_s += time.monotonic() - began_s  # the engine's time stands still
                continue
            self._advance()
            wait_s = (self.engine.next_s - self.now_s()) / self._speed
            if wait_s <= 0:
                await asyncio.sleep(0)
                continue
            try:
                await asyncio.wait_for(self._woken.wait(), None if wait_s == inf else wait_s)
            except TimeoutError:
                pass

    def _advance(self) -> None:
        engine = self.engine
        events = engine.advance(self.now_s())
        for stream in self._streams.values():
            stream.push()
        for event in events:
            if event.kind is EventKind.LEASE_EXPIRED:
                self.lease_expired += 1
                continue
            stream_or_none = self._streams.get(event.request.request_id)
            if stream_or_none is None:
                continue
            if event.kind is EventKind.PULL:
                task = asyncio.create_task(self._pull(stream_or_none))
                self._pulls.add(task)
                task.add_done_callback(self._pulls.discard)
            elif event.kind is EventKind.FIRST:
                self.ttft_s += (event.at_s - event.request.arrived_s) / self._speed
                self.ttft_count += 1
            elif event.kind is EventKind.FINISHED:
                self._finish(stream_or_none)

    def _finish(self, stream: EngineStream) -> None:
        request = stream.request
        del self._streams[request.request_id]
        self.finished += 1
        if request.generated > 1:
            took_s = self.real_s(request.last_token_s - request.first_token_s)
            self.tpot_s += took_s / (request.generated - 1)
            self.tpot_count += 1
        stream.ended.set()

    async def _pull(self, stream: EngineStream) -> None:
        ok = stream.pull is not None and await stream.pull(stream.request)
        self.engine.pulled(stream.request, self.now_s(), ok)
        self._woken.set()
