"""Modules that are imported only when they are needed, since they take long to import."""

import importlib
import signal
from types import ModuleType


def load(module: str) -> ModuleType:
    """Import it; a Ctrl-C meanwhile ends this process at once.

    As a KeyboardInterrupt it would be lost where it hits a library that guards an import of its own.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:
        return importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return importlib.import_module(module)
    finally:
        signal.signal(signal.SIGINT, handler)
