"""`ppd key`: make, list and revoke API keys of the frontend."""

from ppd.cli.key.command import main

__all__ = ["main"]
