"""The life of a worker: start or attach to the engine, register it, watch it, start again when it fails."""

import asyncio
import contextlib
import logging
import secrets
import time
from pathlib import Path

from ppd.runtime.bus import Bus
from ppd.runtime.registry import Registration
from ppd.runtime.tasks import backoff_s
from workers.describe import describe
from workers.engine import numa
from workers.engine.client import EngineClient, EngineError
from workers.engine.command import Start, engine_argv, engine_env
from workers.engine.ports import free_ports
from workers.engine.process import EngineProcess, start_engine
from workers.health import HealthCheck
from workers.load import LoadReports
from workers.preflight import obstacle
from workers.receiver import ReportReceiver
from workers.service import Service
from workers.settings import OWN_OUTPUT, WorkerSettings, parse_cores

_POLL_S = 0.25
_STABLE_S = 60.0  # an engine that served this long starts again with the first back-off


class Agent:
    """One worker: `run` serves until `drain` was asked for and is done."""

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
        self._served = False
        self._draining = asyncio.Event()
        self._ending = asyncio.Event()

    def drain(self) -> None:
        """Take no new turns, let what runs finish, then end. Asked for a second time: end now."""
        if self._draining.is_set():
            self._ending.set()
        self._draining.set()

    async def run(self) -> None:
        """Return when the engine is stopped for good. Raises EngineError if none ever served: what a first
        engine lacks, a second would lack too."""
        serving = asyncio.create_task(self._incarnations())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            for task in (serving, ending):
                task.cancel()
            await asyncio.wait([serving, ending])

    async def _incarnations(self) -> None:
        waits = backoff_s()
        while not self._draining.is_set():
            began_s = time.monotonic()
            try:
                await self._one_incarnation()
                return
            except EngineError as error:
                self._registration.set(None)
                if self._draining.is_set():
                    return
                if not self._served:
                    raise
                self._log.error("%s", error)
            if time.monotonic() - began_s > _STABLE_S:
                waits = backoff_s()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), next(waits))

    async def _one_incarnation(self) -> None:
        """From start to the end of a drain. Raises EngineError, with the last log lines, on a failure."""
        worker_id = f"{self._settings.name}-{secrets.token_hex(4)}"
        process, url = None, self._settings.attach
        if not self._served:
            await self._refuse_what_cannot_start()
        if not url:
            process, url = await self._start(worker_id)
        engine = EngineClient(url, self._settings.engine_key)
        try:
            await self._until_ready(engine, process)
            record = await describe(self._settings, worker_id, url, engine, self._run_dir)
            health = HealthCheck(engine, record.model, self._settings.probe_every_s, self._settings.hang_s)
            load = LoadReports(
                self._settings.namespace, record.worker_id, engine, self._bus, self._reports, health.saw
            )
            service = Service(record, engine, process, self._registration, self._log)
            self._served = True
            await service.run(health, load, self._draining, self._settings.drain_s)
        finally:
            if process is not None:
                await process.stop(now=self._ending.is_set())
            await engine.close()

    async def _refuse_what_cannot_start(self) -> None:
        """Raises EngineError with the cause and what to do. Not for an engine that has served: a hub that is
        away must not keep it from starting again."""
        looking = asyncio.create_task(obstacle(self._settings))
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait([looking, draining], return_when=asyncio.FIRST_COMPLETED)
            if not looking.done():
                raise EngineError("stopped before the engine was ready")
            if problem := looking.result():
                raise EngineError(f"the engine cannot be started: {problem}")
        finally:
            looking.cancel()
            draining.cancel()

    async def _start(self, worker_id: str) -> tuple[EngineProcess, str]:
        settings = self._settings
        try:
            free = free_ports(settings.host, 2)
            start = Start(
                worker_id, settings.port or free[0], settings.side_channel_port or free[1], self._run_dir
            )
            named = settings.engine_log or self._run_dir / "engine.log"
            log = None if named == OWN_OUTPUT else named
            where = log or "this one"
            self._log.info(
                "starting the engine of %s on port %d; its log is %s", worker_id, start.port, where
            )
            self._reports.queued_prefill_tokens = None
            cores = parse_cores(settings.cores) if settings.cores else None
            argv, env = engine_argv(settings, start), engine_env(settings, start)
            if settings.engine == "vllm" and settings.backend == "cpu":
                env |= numa.environment(self._run_dir / "lib", env)
            return await start_engine(argv, env, log, cores), f"http://{settings.advertise_host}:{start.port}"
        except OSError as error:
            raise EngineError(f"the engine cannot be started: {error}") from error

    async def _until_ready(self, engine: EngineClient, process: EngineProcess | None) -> None:
        """Until the engine says that it is healthy and has generated a token."""
        until_s = time.monotonic() + self._settings.start_s
        while not await engine.healthy():
            if process is not None and process.exit_code is not None:
                raise EngineError(
                    f"the engine ended with {process.exit_code} before it was ready:\n{process.last_lines()}"
                )
            if time.monotonic() > until_s:
                last = f":\n{process.last_lines()}" if process else ""
                raise EngineError(f"{engine.url} was not ready within {self._settings.start_s:g} s{last}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), _POLL_S)
                raise EngineError("stopped before the engine was ready")
        model = (await engine.model())["id"]
        await engine.generate(str(model), self._settings.hang_s)
        # vLLM compiles a function at the first use of logprobs: better now than in a user's turn. An engine
        # may refuse them (--max-logprobs 0).
        with contextlib.suppress(EngineError):
            await engine.generate(str(model), self._settings.hang_s, logprobs=1)
