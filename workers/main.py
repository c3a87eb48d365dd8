"""`ppd worker`: the agent beside one engine."""

import asyncio
import logging
import signal
import tempfile
from pathlib import Path

from ppd.runtime import logs
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from ppd.runtime.registry import Registration
from ppd.runtime.settings import load
from ppd.runtime.tasks import Supervisor
from workers.agent import Agent
from workers.receiver import ReportReceiver
from workers.settings import WorkerSettings


async def run(settings: WorkerSettings) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    logger = logs.setup(f"worker {settings.name}", settings.log_level, settings.log_json)
    with tempfile.TemporaryDirectory(prefix="ppd-worker-") as temporary:
        run_dir = settings.run_dir or Path(temporary)
        return await _run(settings, run_dir, logger)


async def _run(settings: WorkerSettings, run_dir: Path, logger: logging.Logger) -> int:
    etcd = Etcd(settings.etcd)
    bus = Bus(settings.nats, f"worker-{settings.name}", logger)
    registration = Registration(etcd, settings.namespace, logger)
    reports = ReportReceiver(settings.namespace, bus, logger)
    await reports.open(run_dir)
    agent = Agent(settings, run_dir, registration, bus, reports, logger)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.drain)
    supervisor = Supervisor(logger)
    supervisor.start("registration", registration.run)
    supervisor.start("kv reports", reports.run)
    connecting = asyncio.create_task(bus.connect())
    try:
        return await agent.run()
    finally:
        connecting.cancel()
        reports.close()
        await supervisor.close()
        await registration.close()
        await bus.close()
        await etcd.close()


def main(argv: list[str]) -> int:
    """`argv` without the command's name; what follows a bare `--` goes to the engine."""
    ours, _, engine_args = _split(argv)
    settings = load(WorkerSettings, ours, "ppd worker")
    settings.engine_args = engine_args
    return asyncio.run(run(settings))


def _split(argv: list[str]) -> tuple[list[str], str, list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], "--", argv[at + 1 :]
