"""What a run inherits from the shell, terminal or service that started it, and no test may depend on."""

import os
import signal

# What an operator exported is no setting of a test's; these are for the tests themselves.
_OURS = ("PPD_TEST", "PPD_IMAGE", "PPD_CPU_IMAGE", "PPD_COMPOSE_TMP")
_TERMINAL = ("CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE")
_LOOPBACK = "127.0.0.1,localhost,::1"


def settle() -> None:
    """Put this process, and so all that the tests start, into a known state."""
    for name in [*os.environ]:
        if name in _TERMINAL or name.startswith("OTEL_") or name == "VLLM_API_KEY":
            del os.environ[name]
        if name.startswith("PPD_") and not name.startswith(_OURS):
            del os.environ[name]
    # Clients that go through a proxy would look for the tests' own servers behind it.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), _LOOPBACK)))
    # A run in the background of a script ignores SIGINT, and some supervisors block signals. SIGHUP, which
    # `nohup` has it ignore, stays so: such a run is to outlive its terminal.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.umask(0o022)
