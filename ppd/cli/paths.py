"""Where `ppd` keeps things on this machine.

The state of a stack (its processes, logs, NATS data) is in `.ppd/` of the current folder, or in PPD_HOME:
two folders are two stacks. Prepared models are shared by all, in the user's cache folder.
"""

import os
from pathlib import Path


def home() -> Path:
    """The folder of this stack; not created here."""
    return Path(os.environ.get("PPD_HOME") or ".ppd").expanduser().resolve()


def models() -> Path:
    """The folder of prepared models: XDG_CACHE_HOME/ppd/models, by default ~/.cache/ppd/models."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ppd" / "models"
