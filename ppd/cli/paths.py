"""Where `ppd` keeps things on this machine.

The state of a stack (its processes, logs, NATS data) is in `.ppd/` of the current folder, or in PPD_HOME:
two folders are two stacks. Prepared models are shared by all, in the user's cache folder.
"""

import errno
import os
from pathlib import Path


def home() -> Path:
    """The folder of this stack; not created here."""
    try:
        return Path(os.environ.get("PPD_HOME") or ".ppd").expanduser().resolve()
    except FileNotFoundError:
        raise SystemExit("ppd: the current folder is gone; change to another one, or set PPD_HOME") from None


def models() -> Path:
    """The folder of prepared models: XDG_CACHE_HOME/ppd/models, by default ~/.cache/ppd/models."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ppd" / "models"


def make_writable(folder: Path) -> None:
    """Make the folder if need be. Raises OSError if nothing can be written into it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
