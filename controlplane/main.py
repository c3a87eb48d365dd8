"""`ppd frontend`: the OpenAI endpoint."""

import asyncio
import socket

import uvicorn
import uvloop

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
        listener = _listen(settings.host, settings.port)
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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


async def _serve(settings: FrontendSettings, listener: socket.socket) -> int:
    log = logs.setup("frontend", settings.log_level, settings.log_json)
    tracer = tracing.setup("ppd-frontend", settings.otlp_endpoint) if settings.otlp_endpoint else None
    frontend = Frontend(settings, tracer, log)
    frontend.start()
    server = uvicorn.Server(
        uvicorn.Config(
            frontend,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(settings.shutdown_s) or 1,
        )
    )
    log.info("listening on %s:%d", *listener.getsockname()[:2])
    try:
        await server.serve(sockets=[listener])
    finally:
        await frontend.close()
        await asyncio.to_thread(tracing.shutdown)
    return 0
