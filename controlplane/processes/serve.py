"""One process of a frontend, from its start to its clean end."""

import asyncio
import gc
import logging
import signal
import ssl

import uvloop

from controlplane.admission.quotas import Quota
from controlplane.app import Frontend
from controlplane.http import server
from controlplane.http.client_connection import REFUSED_SHARE
from controlplane.http.context import Limits
from controlplane.processes.parent import Sibling
from controlplane.settings import FrontendSettings
from controlplane.shared.siblings import Siblings
from ppd.core.names import SERVICE_FRONTEND
from ppd.runtime import logs, open_files, tracing

_WARM_S = 2.0
_OTHER_FILES = 1024  # that are no client's: idle connections to engines, mostly


def run(settings: FrontendSettings, sibling: Sibling) -> int:
    """Serve on the sibling's socket until SIGINT or SIGTERM. Raises OSError where another program has taken
    the port.
    """
    try:
        return uvloop.run(_serve(settings, sibling))
    except KeyboardInterrupt:
        return 0


async def _serve(settings: FrontendSettings, sibling: Sibling) -> int:
    log = logs.setup("frontend", settings.log_level, settings.log_json)
    tracer = None
    if (export := settings.export) is not None:
        tracer = tracing.setup(SERVICE_FRONTEND, export, sample_ratio=settings.trace_ratio)
    quota = Quota(sibling.memory, settings.processes, sibling.number)
    siblings = Siblings(sibling.turns, settings.processes, sibling.number)
    frontend = Frontend(settings, tracer, log, quota, siblings)
    frontend.start()
    await frontend.warm(_WARM_S)
    tls = _tls(settings)
    limits = _reachable(limits_of(settings), settings.max_running, log)
    http = server.Server(frontend, settings.shutdown_s, limits, tls)
    # What was made until now lives as long as the process: the collector need not look at it again, and
    # a turn's objects die by reference count.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, http.stop)
    loop.add_signal_handler(signal.SIGHUP, _reload, settings, frontend, tls, log)
    if sibling.parent_pipe >= 0:
        loop.add_reader(sibling.parent_pipe, _parent_gone, sibling.parent_pipe, http)
    log.info("listening on %s:%d", *sibling.listener.getsockname()[:2])
    try:
        await http.serve([sibling.listener])
    finally:
        await asyncio.gather(frontend.close(), asyncio.to_thread(tracing.shutdown))
    return 0


def _parent_gone(pipe: int, http: server.Server) -> None:
    asyncio.get_running_loop().remove_reader(pipe)
    http.stop()


def limits_of(settings: FrontendSettings) -> Limits:
    return Limits(
        head_bytes=settings.max_head_bytes,
        head_s=settings.head_s,
        body_bytes=settings.max_body_bytes,
        body_s=settings.body_s,
        connections=settings.max_connections,
    )


def files_wanted(connections: int, max_running: int) -> int:
    """How many open files a process needs to serve all connections that it allows."""
    beyond = connections // REFUSED_SHARE
    to_engines = 2 * max_running  # that of the hop before may still be kept
    return connections + beyond + to_engines + _OTHER_FILES


def _reachable(limits: Limits, max_running: int, log: logging.Logger) -> Limits:
    """The number of clients that leaves enough sockets for the engines which serve them; without sockets
    every engine would seem to have failed.
    """
    to_engines = 2 * max_running
    files = open_files.allow(files_wanted(limits.connections, max_running))
    left = files - min(to_engines, files * 2 // 3) - min(_OTHER_FILES, files // 8)
    connections = max(1, left - left // REFUSED_SHARE)
    if connections >= limits.connections:
        return limits
    log.warning("no more than %d connections: this process may open %d files (ulimit -n)", connections, files)
    return limits._replace(connections=connections)


def _tls(settings: FrontendSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    return server.tls_context(str(settings.tls_cert), str(settings.tls_key) if settings.tls_key else None)


def _reload(
    settings: FrontendSettings, frontend: Frontend, tls: ssl.SSLContext | None, log: logging.Logger
) -> None:
    """SIGHUP: API keys and certificate are read again; new connections get the new certificate."""
    frontend.access.reload()
    if tls is not None and settings.tls_cert is not None:
        try:
            _tls(settings)  # a certificate and key that do not match must not replace the ones in use
            tls.load_cert_chain(settings.tls_cert, settings.tls_key)
            log.info("read the certificate again")
        except (OSError, ssl.SSLError) as error:
            log.error("the certificate stays as it was: %s", error)
