"""API keys for tests."""

from pathlib import Path

from ppd.runtime import keys


def made(path: Path, name: str, **limits: str | int) -> dict[str, str]:
    """The headers of a new key that is added to the file `path`."""
    with keys.editing(path) as listed:
        return {"authorization": f"Bearer {keys.add(listed, name, '', **limits)}"}
