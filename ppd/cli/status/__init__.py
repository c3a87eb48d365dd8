"""`ppd status`: what runs, asked of the parts themselves."""

from ppd.cli.status.command import main

__all__ = ["main"]
