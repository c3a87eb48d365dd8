"""`ppd frontend`: the OpenAI endpoint."""

import ssl

from controlplane.processes.parent import Sibling, supervise
from controlplane.settings import FrontendSettings
from ppd.core import policies
from ppd.runtime import keys, logs
from ppd.runtime.settings import load


def main(argv: list[str]) -> int:
    """Serve until SIGINT or SIGTERM. 0 after a clean end, 1 if the port cannot be had, 2 for bad settings."""
    settings = load(FrontendSettings, argv, "ppd frontend")
    log = logs.setup("frontend", settings.log_level, settings.log_json)
    try:
        policies.make(settings.policy)
    except policies.UnknownPolicyError as error:
        log.error("--policy: %s", error)
        return 2
    try:
        if settings.keys is not None:
            keys.read(settings.keys)
        if settings.tls_cert is not None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.tls_cert, settings.tls_key
            )
    except keys.KeyFileError as error:
        log.error("--keys: %s", error)
        return 2
    except (OSError, ssl.SSLError) as error:
        log.error("--tls-cert and --tls-key: %s", error)
        return 2
    if settings.tls_key is not None and settings.tls_cert is None:
        log.error("--tls-key: without --tls-cert nothing would be encrypted")
        return 2
    if settings.access_log not in ("", "-"):
        try:
            open(settings.access_log, "ab").close()
        except OSError as error:
            log.error("--access-log %s: %s", settings.access_log, error.strerror or error)
            return 2
    if settings.keys is None and settings.host not in ("127.0.0.1", "::1", "localhost"):
        log.warning("listening on %s without --keys: whoever reaches this port may call", settings.host)

    def run(sibling: Sibling) -> int:
        from controlplane.processes.serve import (
            run as serve,  # here, since metrics of several processes need a setting
        )

        return serve(settings, sibling)

    try:
        return supervise(settings, run, log)
    except OSError as error:
        log.error("cannot listen on %s:%d: %s", settings.host, settings.port, error.strerror or error)
        return 1
