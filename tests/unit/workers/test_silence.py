"""What an agent says of an engine that gives no sign of life."""

import asyncio

import pytest

from ppd.core.records import WorkerLoad, decode
from workers.engine.client import EngineError, EngineSilentError
from workers.engine.metrics import EngineSample
from workers.health import Pulse
from workers.load import LoadReports

pytestmark = pytest.mark.unit

METRICS = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'


def test_silence_is_what_was_waited_for_it_and_ends_with_an_answer() -> None:
    pulse = Pulse()
    for _ in range(8):
        pulse.missed(0.25)
    assert pulse.silent_s == 2.0
    pulse.answered(EngineSample(steps=5), 0.25)
    assert pulse.silent_s == 0.0


def test_stuck_is_who_has_requests_and_makes_no_step() -> None:
    pulse = Pulse()
    for steps, running, stuck_s in ((5, 1, 0), (5, 1, 0.25), (5, 1, 0.5), (6, 1, 0), (6, 1, 0.25), (6, 0, 0)):
        pulse.answered(EngineSample(steps=steps, running=running), 0.25)
        assert pulse.stuck_s == stuck_s


class FakeEngine:
    """Answers, or does not."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = asyncio.Event()
        self.hangs.set()

    async def metrics(self, names: object) -> str:
        await self.hangs.wait()
        if self.error is not None:
            raise self.error
        return METRICS


class FakeBus:
    def __init__(self) -> None:
        self.loads: list[WorkerLoad] = []

    async def publish(self, subject: str, data: bytes, kind: str) -> bool:
        self.loads.append(decode(data, WorkerLoad))
        return True

    async def until(self, silent: bool) -> WorkerLoad:
        self.loads.clear()
        async with asyncio.timeout(20):
            while not self.loads or (self.loads[-1].silent_s > 0) is not silent:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return self.loads[-1]


class FakeReceiver:
    queued_prefill_tokens = 7
    dropped = 0


@pytest.mark.parametrize("how", ["hangs", "cannot be reached"])
async def test_reports_go_on_and_tell_of_the_silence(how: str) -> None:
    engine, bus = FakeEngine(), FakeBus()
    reports = LoadReports("default", "d0-1", engine, bus, FakeReceiver(), lambda _: None)  # type: ignore[arg-type]
    task = asyncio.create_task(reports.run())
    assert (await bus.until(silent=False)).running == 2
    if how == "hangs":
        engine.hangs.clear()
    else:
        engine.error = EngineSilentError("refused")
    said = await bus.until(silent=True)
    assert 1 <= said.silent_s < 3
    assert (said.running, said.kv_use) == (2, 0.5)
    engine.error = EngineError("HTTP 500")  # which is an answer
    engine.hangs.set()
    await asyncio.sleep(0.6)
    engine.error = None
    assert (await bus.until(silent=False)).queued_prefill_tokens == 7
    task.cancel()
