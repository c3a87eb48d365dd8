"""What an operator may ask of the leader: one method per verb of the micro service."""

from collections.abc import Callable
from typing import Any

import msgspec

from planner.tables import Tables, UnknownTableError
from ppd.core.names import table_key
from ppd.core.records import TableSnapshot


class Which(msgspec.Struct):
    """Names a table; model and placement may be left out where there is only one that fits."""

    model: str = ""
    placement: str = ""
    version: int = 0  # 0 = the newest


def parse(data: bytes, kind: type[Any]) -> Any:
    """An empty request is one with all defaults. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data or b"{}", type=kind)


class Operations:
    def __init__(self, tables: Tables, status: Callable[[], dict[str, Any]]) -> None:
        self._tables = tables
        self._status = status

    def handlers(self) -> dict[str, Callable[[bytes], Any]]:
        return {"table.get": self.table_get, "status": self.status}

    def _key(self, which: Which) -> str:
        if which.model and which.placement:
            return table_key(which.model, which.placement)
        fits = [
            key
            for key, snapshot in self._tables.known.items()
            if which.model in ("", snapshot.model) and which.placement in ("", snapshot.placement)
        ]
        if len(fits) != 1:
            known = ", ".join(f"{s.model} on {s.placement}" for s in self._tables.known.values())
            raise UnknownTableError(
                f"{len(fits)} tables fit: name model and placement ({known or 'none yet'})"
            )
        return fits[0]

    async def table_get(self, data: bytes) -> TableSnapshot:
        """{model?, placement?, version?} -> the TableSnapshot."""
        which = parse(data, Which)
        key = self._key(which)
        return await self._tables.version(key, which.version) if which.version else self._tables.find(key)

    async def status(self, data: bytes) -> dict[str, Any]:
        """{} -> role, leader, tables, turns, lag, problems."""
        return self._status()
