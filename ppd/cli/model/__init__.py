"""Models by name: the small one that comes from PyPI, a local folder, or a name that the engine knows."""

from ppd.cli.model.command import main

__all__ = ["main"]
