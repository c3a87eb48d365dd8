"""The PPD tables that the planner published, as last known."""

import logging
from functools import lru_cache

from ppd.core.decision import DEFAULT_SLO, Weights
from ppd.core.names import table_key
from ppd.core.placement import PlacementError, parse_placement, unlike
from ppd.core.records import BadRecordError, TableSnapshot, decode
from ppd.core.score import slo_classes
from ppd.core.table import Table, TableError

_MAX_TABLES = 256


@lru_cache(_MAX_TABLES)
def _classes(table: Table | None) -> dict[str, Weights]:
    return slo_classes(table.snapshot if table is not None else None)


class Tables:
    """The tables by model and placement. An invalid snapshot leaves the last good one in place."""

    def __init__(self, logger: logging.Logger) -> None:
        self._log = logger
        self._tables: dict[str, Table] = {}
        self._stand_ins: dict[str, Table | None] = {}  # of placements without a table of their own

    def update(self, key: str, value: bytes) -> None:
        """A new value of the bucket."""
        try:
            table = Table(decode(value, TableSnapshot))
        except (BadRecordError, TableError) as error:
            self._log.warning("refusing the table at %s: %s", key, error)
            return
        known = self._tables.get(key)
        if table_key(table.model, table.placement) != key:
            self._log.warning(
                "refusing the table at %s: it is for %s on %s", key, table.model, table.placement
            )
        elif known is not None and table.version < known.version:
            self._log.warning(
                "refusing table %s at version %d: %d is in use", key, table.version, known.version
            )
        elif known is not None and table.version == known.version:
            return
        elif known is not None or len(self._tables) < _MAX_TABLES:
            self._tables[key] = table
            self._stand_ins.clear()
            self._log.info(
                "the table of %s on %s is at version %d (%s)",
                *(table.model, table.placement, table.version, table.snapshot.source),
            )

    def table(self, model: str, placement: str) -> Table | None:
        """The table of a placement. A placement without one uses that of the most similar placement."""
        key = table_key(model, placement)
        found = self._tables.get(key)
        if found is not None:
            return found
        if key not in self._stand_ins:
            if len(self._stand_ins) >= _MAX_TABLES:
                self._stand_ins.clear()
            self._stand_ins[key] = self._most_similar(model, placement)
        return self._stand_ins[key]

    def _most_similar(self, model: str, placement: str) -> Table | None:
        try:
            wanted = parse_placement(placement)
        except PlacementError:
            return None
        if not wanted.prefill or not wanted.decode:
            return None
        known = [
            (apart, table)
            for table in self._tables.values()
            if table.model == model and (apart := unlike(wanted, table.placement)) is not None
        ]
        return min(known, key=lambda each: each[0])[1] if known else None

    def weights(self, table: Table | None, slo: str) -> Weights:
        """The weights of an SLO class: the table's, otherwise the built-in ones; balanced for an unknown
        class.
        """
        classes = _classes(table)
        return classes.get(slo) or classes[DEFAULT_SLO]

    def all(self) -> dict[str, Table]:
        return dict(self._tables)
