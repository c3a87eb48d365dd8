"""What keeps a part from working, and what to do about it."""

from typing import NamedTuple


class Problem(NamedTuple):
    """Each is one line without a full stop."""

    seen: str
    do: str

    def __str__(self) -> str:
        return f"{self.seen}; {self.do}"
