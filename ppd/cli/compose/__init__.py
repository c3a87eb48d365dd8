"""`ppd compose`: the compose file of any placement's engines."""

from ppd.cli.compose.command import main

__all__ = ["main"]
