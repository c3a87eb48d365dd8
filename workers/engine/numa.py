"""libnuma, which vLLM's kernels for CPUs are linked against and which a bare system lacks.

NIXL's wheels bring a copy under a name of their own. Where the system has none, a link to that copy goes into
a folder that the engine's loader searches.
"""

import ctypes
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

NAME = "libnuma.so.1"
_WHEELS = ("nixl-cu13", "nixl-cu12")


class MissingLibraryError(OSError):
    """Neither the system nor a package has libnuma."""

    def __init__(self) -> None:
        super().__init__(
            f"vLLM's kernels for CPUs need {NAME}, which this machine lacks: "
            "apt install libnuma1 (Debian, Ubuntu) or dnf install numactl-libs (Fedora, RHEL)"
        )


def _system_has_it() -> bool:
    try:
        ctypes.CDLL(NAME)
    except OSError:
        return False
    return True


def _packaged() -> Path | None:
    for wheel in _WHEELS:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnuma") and (path := Path(str(file.locate()))).exists():
                return path.resolve()
    return None


def check() -> None:
    """Raises MissingLibraryError if no engine could find libnuma."""
    if not _system_has_it() and _packaged() is None:
        raise MissingLibraryError


def environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment `base` so that an engine finds libnuma; `folder` takes the link.

    Raises MissingLibraryError.
    """
    if _system_has_it():
        return {}
    if (found := _packaged()) is None:
        raise MissingLibraryError
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / NAME
    link.unlink(missing_ok=True)
    link.symlink_to(found)
    searched = base.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{searched}" if searched else str(folder)}
