"""The live page at `/ui`: static files, and read-only data for them; see README.md."""

from controlplane.ui.mount import mount

__all__ = ["mount"]
