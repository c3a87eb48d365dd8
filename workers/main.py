"""`ppd worker`: the agent beside one engine."""

import asyncio
import contextlib
import logging
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from ppd.runtime import engine_key, logs
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from ppd.runtime.registry import Registration, WorkerWatch
from ppd.runtime.settings import load
from ppd.runtime.tasks import Supervisor
from workers.agent import Agent
from workers.engine.client import EngineError
from workers.peers import PeerCheck
from workers.receiver import ReportReceiver
from workers.settings import WorkerSettings


async def run(settings: WorkerSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code: 0, or 1 where the first engine cannot be had."""
    logger = logs.setup(f"worker {settings.name}", settings.log_level, settings.log_json)
    with tempfile.TemporaryDirectory(prefix="ppd-worker-") as temporary:
        try:
            async with _agent(settings, settings.run_dir or Path(temporary), logger) as agent:
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, agent.drain)
                await agent.run()
        except EngineError as error:
            logger.error("%s", error)
            return 1
    return 0


@contextlib.asynccontextmanager
async def _agent(settings: WorkerSettings, run_dir: Path, logger: logging.Logger) -> AsyncIterator[Agent]:
    """The agent and what it stands on; at the end the record is taken out of etcd."""
    etcd = Etcd(settings.etcd)
    bus = Bus(settings.nats, f"worker-{settings.name}", logger)
    registration = Registration(etcd, settings.namespace, logger)
    peers = WorkerWatch(etcd, settings.namespace, PeerCheck(settings.name, logger).look, logger)
    reports = ReportReceiver(settings.namespace, bus, logger)
    await reports.open(run_dir)
    supervisor = Supervisor(logger)
    supervisor.start("registration", registration.run)
    supervisor.start("peers", peers.run)
    supervisor.start("kv reports", reports.run)
    connecting = asyncio.create_task(bus.connect())
    try:
        yield Agent(settings, run_dir, registration, bus, reports, logger)
    finally:
        connecting.cancel()
        reports.close()
        await supervisor.close()
        await registration.close()
        await bus.close()
        await etcd.close()


def main(argv: list[str]) -> int:
    """`argv` without the command's name; what follows a bare `--` goes to the engine."""
    at = argv.index("--") if "--" in argv else len(argv)
    settings = load(WorkerSettings, argv[:at], "ppd worker")
    settings.engine_args = argv[at + 1 :]
    if refused := engine_key.refusal(settings.engine_args):
        print(f"ppd worker: {refused}", file=sys.stderr)  # noqa: T201
        return 2
    return asyncio.run(run(settings))
