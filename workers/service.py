"""An engine in service: registered, watched, and at the end drained."""

import asyncio
import contextlib
import logging

import msgspec

from ppd.core.names import Role, WorkerStatus
from ppd.core.records import WorkerRecord
from ppd.runtime.registry import Registration
from workers.describe import other_models
from workers.engine.client import EngineClient, EngineError
from workers.engine.metrics import NAMES, EngineSample
from workers.engine.process import EngineProcess
from workers.health import HealthCheck
from workers.load import LoadReports

_POLL_S = 0.25
_NAMES_S = 1.0
_GRACE_S = 1.0  # frontends that have not yet seen `draining` may still send a turn


class Service:
    """One incarnation, from its registration to its end."""

    def __init__(
        self,
        record: WorkerRecord,
        engine: EngineClient,
        process: EngineProcess | None,
        registration: Registration,
        logger: logging.Logger,
    ) -> None:
        self._record = record
        self._engine = engine
        self._process = process
        self._registration = registration
        self._log = logger

    async def run(
        self, health: HealthCheck, load: LoadReports, draining: asyncio.Event, drain_s: float
    ) -> None:
        """Return when it is drained, once `draining` is set. Raises EngineError when the engine fails."""
        record = self._record
        self._registration.set(record)
        self._log.info("%s serves %s as %s at %s", record.worker_id, record.model, record.role, record.url)
        failures = [asyncio.create_task(health.watch())]
        if self._process is not None:
            failures.append(asyncio.create_task(_ended(self._process)))
        reports = asyncio.create_task(load.run())
        names = asyncio.create_task(self._follow_names(draining))
        drained = asyncio.create_task(self._drain(draining, drain_s))
        try:
            await asyncio.wait([*failures, reports, names, drained], return_when=asyncio.FIRST_COMPLETED)
            causes = [failure.result() for failure in failures if failure.done()]
            if causes and not drained.done():
                raise EngineError(self._epitaph(causes[0]))
            for task in (reports, names, drained):
                if task.done():
                    task.result()
        finally:
            self._registration.set(None)
            for one in (*failures, reports, drained, names):
                one.cancel()

    async def _follow_names(self, draining: asyncio.Event) -> None:
        """For ever: register again when an adapter was loaded or unloaded."""
        while True:
            await asyncio.sleep(_NAMES_S)
            try:
                others = other_models(await self._engine.models())
            except EngineError:
                continue  # whether it must be given up is for the health check to judge
            if others != self._record.other_models and not draining.is_set():
                self._record = msgspec.structs.replace(self._record, other_models=others)
                self._registration.set(self._record)
                listed = ", ".join(others) or "none"
                self._log.info("%s serves other names than before: %s", self._record.worker_id, listed)

    def _epitaph(self, cause: str) -> str:
        last = f"; its last lines:\n{self._process.last_lines()}" if self._process else ""
        return f"the engine of {self._record.worker_id} failed: {cause}{last}"

    async def _drain(self, draining: asyncio.Event, drain_s: float) -> None:
        await draining.wait()
        self._log.info("draining %s, for at most %g s", self._record.worker_id, drain_s)
        self._registration.set(msgspec.structs.replace(self._record, status=WorkerStatus.DRAINING))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle(), drain_s)

    async def _idle(self) -> None:
        """Until nothing runs or waits and, on a prefill engine, no blocks wait for a decode engine's read."""
        await asyncio.sleep(_GRACE_S)
        while True:
            with contextlib.suppress(EngineError, ValueError):
                sample = EngineSample.parse(await self._engine.metrics(NAMES))
                unread = self._record.role is Role.PREFILL and sample.kv_use > 0
                if not (sample.running or sample.waiting or unread):
                    return
            await asyncio.sleep(_POLL_S)


async def _ended(process: EngineProcess) -> str:
    return f"its process ended with {await process.wait()}"
