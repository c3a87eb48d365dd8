"""`ppd trace`: turns as Jaeger recorded them, drawn in the terminal."""

from ppd.cli.trace.command import main

__all__ = ["main"]
