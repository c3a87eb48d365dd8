"""The life of a worker: start or attach to the engine, register it, watch it, start again when it fails."""

import asyncio
import contextlib
import logging
import secrets
import time
from pathlib import Path

from prometheus_client import Counter

from ppd.core.names import WorkerStatus, load_subject
from ppd.core.records import WorkerRecord, encode
from ppd.runtime.bus import Bus
from ppd.runtime.registry import Registration
from ppd.runtime.tasks import backoff_s
from workers.describe import describe
from workers.engine.client import EngineClient, EngineError
from workers.engine.command import Start, engine_argv, engine_env
from workers.engine.metrics import NAMES, Sample
from workers.engine.ports import free_ports
from workers.engine.process import EngineProcess, start_engine
from workers.health import HealthCheck
from workers.load import LoadMeter
from workers.receiver import ReportReceiver
from workers.settings import WorkerSettings, parse_cores

RESTARTS = Counter("ppd_engine_restarts", "Engines that died or hung and were started again")

_REPORT_EVERY_S = 0.25
_POLL_S = 0.25
_STABLE_S = 60.0  # an engine that served this long starts again with the first back-off


class Agent:
    """One worker. `run` serves until `drain` was asked for and is done; `end_now` cuts that short."""

    def __init__(
        self,
        settings: WorkerSettings,
        run_dir: Path,
        registration: Registration,
        bus: Bus,
        reports: ReportReceiver,
        logger: logging.Logger,
    ) -> None:
        self._settings = settings
        self._run_dir = run_dir
        self._registration = registration
        self._bus = bus
        self._reports = reports
        self._log = logger
        self._draining = asyncio.Event()
        self._ending = asyncio.Event()
        self._last: Sample = Sample()

    def drain(self) -> None:
        """Take no new turns, let what runs finish, then end. Asked for a second time: end now."""
        if self._draining.is_set():
            self._ending.set()
        self._draining.set()

    async def run(self) -> int:
        """The exit code: 0 after a drain, 1 if an engine to attach to is no such engine."""
        waits = backoff_s()
        while not self._draining.is_set():
            began_s = time.monotonic()
            try:
                await self._one_incarnation()
                return 0
            except EngineError as error:
                self._registration.set(None)
                if self._draining.is_set():
                    return 0
                self._log.error("%s", error)
            if time.monotonic() - began_s > _STABLE_S:
                waits = backoff_s()
            RESTARTS.inc()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), next(waits))
        return 0

    async def _one_incarnation(self) -> None:
        """From start to the end of a drain. Raises EngineError, with the last log lines, on a failure."""
        settings = self._settings
        worker_id = f"{settings.name}-{secrets.token_hex(4)}"
        process: EngineProcess | None = None
        url = settings.attach
        if not url:
            port, side_port = self._ports()
            start = Start(worker_id, port, side_port, self._run_dir)
            process = await self._start(start)
            url = f"http://{settings.advertise_host}:{port}"
        engine = EngineClient(url)
        try:
            record = await self._until_ready(worker_id, url, engine, process)
            await self._serve(record, engine, process)
        finally:
            await engine.close()
            if process is not None:
                await process.stop(now=self._ending.is_set())

    def _ports(self) -> tuple[int, int]:
        free = free_ports(self._settings.host, 2)
        return self._settings.port or free[0], self._settings.side_channel_port or free[1]

    async def _start(self, start: Start) -> EngineProcess:
        settings = self._settings
        log = settings.engine_log or self._run_dir / "engine.log"
        self._log.info(
            "starting the engine of %s on port %d; its log is %s", start.worker_id, start.port, log
        )
        cores = parse_cores(settings.cores) if settings.cores else None
        try:
            return await start_engine(engine_argv(settings, start), engine_env(settings, start), log, cores)
        except OSError as error:
            raise EngineError(f"the engine cannot be started: {error}") from error

    async def _until_ready(
        self, worker_id: str, url: str, engine: EngineClient, process: EngineProcess | None
    ) -> WorkerRecord:
        until_s = time.monotonic() + self._settings.start_s
        while not await engine.healthy():
            if process is not None and process.exit_code is not None:
                raise EngineError(
                    f"the engine ended with {process.exit_code} before it was ready:\n{process.last_lines()}"
                )
            if time.monotonic() > until_s:
                last = f":\n{process.last_lines()}" if process else ""
                raise EngineError(f"{url} was not ready within {self._settings.start_s:g} s{last}")
            await self._pause(_POLL_S)
        model = (await engine.model())["id"]
        await engine.generate(str(model), self._settings.hang_s)
        return await describe(self._settings, worker_id, url, engine, self._run_dir)

    async def _pause(self, wait_s: float) -> None:
        """Sleep, but not into a drain: an engine that is not ready yet has nothing to finish."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._draining.wait(), wait_s)
            raise EngineError("stopped before the engine was ready")

    async def _serve(self, record: WorkerRecord, engine: EngineClient, process: EngineProcess | None) -> None:
        settings = self._settings
        self._registration.set(record)
        self._log.info("%s serves %s as %s at %s", record.worker_id, record.model, record.role, record.url)
        health = HealthCheck(engine, record.model, settings.probe_every_s, settings.hang_s, self._log)
        failures = [asyncio.create_task(health.watch())]
        if process is not None:
            failures.append(asyncio.create_task(_ended(process)))
        reports = asyncio.create_task(self._report(record.worker_id, engine, health))
        drained = asyncio.create_task(self._drain(record))
        try:
            await asyncio.wait([*failures, drained], return_when=asyncio.FIRST_COMPLETED)
            if not drained.done():
                self._registration.set(None)
                cause = next(task.result() for task in failures if task.done())
                last = f"; its last lines:\n{process.last_lines()}" if process else ""
                raise EngineError(f"the engine of {record.worker_id} failed: {cause}{last}")
        finally:
            for task in (*failures, reports, drained):
                task.cancel()

    async def _report(self, worker_id: str, engine: EngineClient, health: HealthCheck) -> None:
        meter = LoadMeter(worker_id)
        subject = load_subject(self._settings.namespace, worker_id)
        while True:
            began_s = time.monotonic()
            try:
                self._last = Sample.parse(await engine.metrics(NAMES))
            except (EngineError, ValueError) as error:
                self._log.debug("no load report: %s", error)
            else:
                health.saw(self._last)
                load = meter.report(time.monotonic(), self._last, self._reports.queued_prefill_tokens)
                await self._bus.publish(subject, encode(load), "load")
            await asyncio.sleep(max(0.05, _REPORT_EVERY_S - (time.monotonic() - began_s)))

    async def _drain(self, record: WorkerRecord) -> None:
        """Once asked to: say `draining`, wait for what runs, at most `drain_s`, and deregister."""
        await self._draining.wait()
        self._log.info("draining %s, for at most %g s", record.worker_id, self._settings.drain_s)
        record.status = WorkerStatus.DRAINING
        self._registration.set(record)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle(), self._settings.drain_s)
        self._registration.set(None)

    async def _idle(self) -> None:
        while self._last.running or self._last.waiting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _POLL_S)
                return


async def _ended(process: EngineProcess) -> str:
    return f"its process ended with {await process.wait()}"
