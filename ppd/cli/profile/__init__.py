"""`ppd profile`: measures the PPD table on a live cluster."""

from ppd.cli.profile.command import main

__all__ = ["main"]
