"""`ppd planner`: the service that owns the PPD table."""

import asyncio
import signal

from planner.service import Planner
from planner.settings import PlannerSettings
from ppd.runtime import logs
from ppd.runtime.settings import load


def main(argv: list[str]) -> int:
    """Run until SIGINT or SIGTERM."""
    settings = load(PlannerSettings, argv, "ppd planner")
    logger = logs.setup("planner", settings.log_level, settings.log_json)
    try:
        asyncio.run(_run(Planner(settings, logger)))
    except OSError as error:
        logger.error("cannot listen on %s:%d: %s", settings.host, settings.port, error)
        return 1
    return 0


async def _run(planner: Planner) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await planner.run(stop)
