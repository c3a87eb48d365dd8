"""The points of one profile on disk: one line of JSON each, appended and synced, never rewritten."""

import os
from pathlib import Path

import msgspec

from planner.profile.records import Head, Line, Point, ProfileError, Speeds

_decoder = msgspec.json.Decoder(Line)


class Journal:
    """Opened anew or continued. A last line that was cut off by a crash is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.head: Head | None = None
        self.speeds: Speeds | None = None
        self.points: list[Point] = []
        if path.exists():
            self._read()

    def _read(self) -> None:
        """Raises ProfileError for a file that is something else."""
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        try:
            for line in whole.splitlines():
                self._take(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProfileError(
                f"{self._path} is no journal of a profile ({error}); give another --out"
            ) from error
        if len(whole) < len(data):
            with open(self._path, "r+b") as file:
                file.truncate(len(whole))

    def _take(self, line: Line) -> None:
        match line:
            case Head():
                self.head = line
            case Speeds():
                self.speeds = line
            case Point():
                self.points.append(line)

    def begin(self, head: Head) -> bool:
        """Whether what is here is continued. Raises ProfileError if it is of another cluster."""
        mine = self.head
        if mine is None:
            self.add(head)
            return False
        for name in ("model", "placement", "hardware", "turns"):
            was, now = getattr(mine, name), getattr(head, name)
            if was != now:
                raise ProfileError(
                    f"{self._path} was measured with {name} {was!r}, and now it is {now!r}: "
                    "give another --out, or --fresh to begin anew"
                )
        return True

    def add(self, line: Line) -> None:
        """On disk when it returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(line)
