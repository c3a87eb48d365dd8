"""`ppd frontend`: the OpenAI endpoint."""

import asyncio
import gc
import signal
import socket

import uvloop

from controlplane import server
from controlplane.app import Frontend
from controlplane.settings import FrontendSettings
from ppd.core import policies
from ppd.runtime import logs, tracing
from ppd.runtime.settings import load


def main(argv: list[str]) -> int:
    """Serve until SIGINT or SIGTERM. 0 after a clean end, 1 if the port cannot be had, 2 for bad settings."""
    settings = load(FrontendSettings, argv, "ppd frontend")
    log = logs.setup("frontend", settings.log_level, settings.log_json)
    try:
        policies.make(settings.policy)
        listener = server.listen(settings.host, settings.port)
    except policies.UnknownPolicyError as error:
        log.error("--policy: %s", error)
        return 2
    except OSError as error:
        log.error("cannot listen on %s:%d: %s", settings.host, settings.port, error.strerror or error)
        return 1
    try:
        return uvloop.run(_serve(settings, listener))
    except KeyboardInterrupt:
        return 0


async def _serve(settings: FrontendSettings, listener: socket.socket) -> int:
    log = logs.setup("frontend", settings.log_level, settings.log_json)
    tracer = tracing.setup("ppd-frontend", settings.otlp_endpoint) if settings.otlp_endpoint else None
    frontend = Frontend(settings, tracer, log)
    frontend.start()
    http = server.make(frontend, settings.shutdown_s)
    # What was made until now lives as long as the process: the collector need not look at it again, and
    # a turn's objects die by reference count.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn ends cleanly on these and then raises them again, which would cut off what follows.
        signal.signal(number, lambda *_: None)
    log.info("listening on %s:%d", *listener.getsockname()[:2])
    try:
        await http.serve(sockets=[listener])
    finally:
        await frontend.close()
        await asyncio.to_thread(tracing.shutdown)
    return 0
