"""The arena's results in a folder, so that a run that was stopped goes on where it was.

    DIR/tables/CONDITION.json           the offline table of a condition's cluster
    DIR/CONDITION/POLICY/SEED.json      one outcome, with the rate and duration it was found at

An outcome of another rate or duration does not count. One of other code cannot be told: take another
folder, or delete what the change concerns.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from bench.policies_conditions import Condition
from bench.policies_run import Outcome
from ppd.core.records import TableSnapshot
from simulator import offline

_LEVELS = (1.0, 6.0)
_T = TypeVar("_T")


class Kept(msgspec.Struct, frozen=True):
    rate: float
    duration_s: float
    outcome: Outcome


class Store:
    """Without a folder it keeps tables in memory, and nothing else."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._tables: dict[str, TableSnapshot] = {}

    def outcome(self, condition: Condition, policy: str, seed: int, duration_s: float) -> Outcome | None:
        kept = _read(self._file(condition.name, policy, seed), Kept)
        if kept is None or (kept.rate, kept.duration_s) != (condition.rate, duration_s):
            return None
        return kept.outcome

    def keep(self, condition: Condition, outcome: Outcome, duration_s: float) -> None:
        file = self._file(condition.name, outcome.policy, outcome.seed)
        _write(file, Kept(condition.rate, duration_s, outcome))

    def table(self, condition: Condition) -> TableSnapshot:
        """Measured when first asked for."""
        name = condition.name
        if name not in self._tables:
            file = self._folder / "tables" / f"{name}.json" if self._folder else None
            found = _read(file, TableSnapshot)
            if found is None:
                found = offline.measure(condition.spec, condition.placement, levels=_LEVELS)
                _write(file, found)
            self._tables[name] = found
        return self._tables[name]

    def _file(self, condition: str, policy: str, seed: int) -> Path | None:
        return self._folder / condition / policy / f"{seed}.json" if self._folder else None


def _read(file: Path | None, kind: type[_T]) -> _T | None:
    if file is None or not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.DecodeError:  # of another version of this code
        return None


def _write(file: Path | None, value: object) -> None:
    """All of it or nothing."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(value))
    partial.replace(file)
