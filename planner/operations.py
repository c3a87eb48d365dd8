"""What an operator may ask of the leader: one method per verb of the micro service, JSON in and out."""

from collections.abc import Callable
from typing import Any

import msgspec

from planner.api import Handler
from planner.explain import explain
from planner.requests import (
    DiffRequest,
    ExplainRequest,
    RebuildRequest,
    RollbackRequest,
    WeightsRequest,
    Which,
    WhichVersion,
)
from planner.tables import Tables, UnknownTableError
from planner.term import Term
from ppd.core import seeds
from ppd.core.learning.diff import diff
from ppd.core.names import table_key
from ppd.core.placement import PlacementError, parse_placement
from ppd.core.records import TableSnapshot
from ppd.core.table import Table, TableError


class Operations:
    def __init__(self, tables: Tables, term: Term, status: Callable[[], dict[str, Any]]) -> None:
        self._tables = tables
        self._term = term
        self._status = status

    def handlers(self) -> dict[str, Handler]:
        return {
            "status": self.status,
            "table.get": self.table_get,
            "table.history": self.table_history,
            "table.diff": self.table_diff,
            "weights.set": self.weights_set,
            "freeze": self.freeze,
            "unfreeze": self.unfreeze,
            "rollback": self.rollback,
            "rebuild": self.rebuild,
            "explain": self.explain,
        }

    def _key(self, which: Which) -> str:
        if which.model and which.placement:
            return table_key(which.model, which.placement)
        fits = [
            key
            for key, snapshot in self._tables.known.items()
            if which.model in ("", snapshot.model) and which.placement in ("", snapshot.placement)
        ]
        if len(fits) > 1:  # of several placements that ran once, the one that runs now is meant
            fits = [key for key in fits if self._term.runs(self._tables.known[key])] or fits
        if len(fits) != 1:
            known = ", ".join(f"{s.model} on {s.placement}" for s in self._tables.known.values())
            raise UnknownTableError(
                f"{len(fits)} tables fit: name model and placement ({known or 'none yet'})"
            )
        return fits[0]

    async def status(self, data: bytes) -> dict[str, Any]:
        """{} -> role, leader, tables, turns, lag, trouble."""
        return self._status()

    async def table_get(self, data: bytes) -> TableSnapshot:
        """{model?, placement?, version?} -> the TableSnapshot."""
        which = _parse(data, WhichVersion)
        key = self._key(which)
        return await self._tables.version(key, which.version) if which.version else self._tables.find(key)

    async def table_history(self, data: bytes) -> list[dict[str, Any]]:
        """{model?, placement?} -> the versions that are kept, oldest first, without their cells."""
        kept = await self._tables.history(self._key(_parse(data, Which)))
        return [
            {"version": s.version, "created_unix_s": s.created_unix_s, "source": s.source, "frozen": s.frozen}
            for s in kept
        ]

    async def table_diff(self, data: bytes) -> dict[str, Any]:
        """{model?, placement?, from?, to?} -> verdicts and figures that differ."""
        request = _parse(data, DiffRequest)
        key = self._key(request)
        newer = await self._tables.version(key, request.to_version or self._tables.find(key).version)
        older = await self._tables.version(key, request.from_version or max(1, newer.version - 1))
        return diff(Table(older), Table(newer))

    async def weights_set(self, data: bytes) -> dict[str, Any]:
        """{model?, placement?, slo_class, ttft, tpot, ttft_limit_ms?, tpot_limit_ms?} -> the published
        version."""
        request = _parse(data, WeightsRequest)
        return await self._publish(request, lambda current: _weighted(current, request))

    async def freeze(self, data: bytes) -> dict[str, Any]:
        """{model?, placement?} -> the published version; the online loop learns on but publishes nothing."""
        return await self._publish(
            _parse(data, Which),
            lambda current: msgspec.structs.replace(current, frozen=True, source="frozen"),
        )

    async def unfreeze(self, data: bytes) -> dict[str, Any]:
        """{model?, placement?} -> the published version."""
        return await self._publish(
            _parse(data, Which),
            lambda current: msgspec.structs.replace(current, frozen=False, source="unfrozen"),
        )

    async def rollback(self, data: bytes) -> dict[str, Any]:
        """{model?, placement?, version} -> the published version: that one again, frozen until unfrozen."""
        request = _parse(data, RollbackRequest)
        old = await self._tables.version(self._key(request), request.version)
        return await self._publish(
            request,
            lambda current: msgspec.structs.replace(old, frozen=True, source=f"rollback of {old.version}"),
        )

    async def rebuild(self, data: bytes) -> dict[str, Any]:
        """{model?, placement?, table?} -> the published version: `table`, or the nearest seed.

        What was learned of the figures is dropped: it was relative to others. Turns that are in the
        stream already teach no more: `learns_from_sequence` is the first message that does.
        """
        request = _parse(data, RebuildRequest)
        given = request.table
        if given is not None:
            request.model, request.placement = given.model, given.placement
            Table(given)
        key = self._key(request)
        if key not in self._tables.known and given is not None:
            made = await self._term.publish_first(given)
            if made is not None:
                return _published(made)
        current = self._tables.find(key)
        fresh = given or seeds.nearest(_placement(current.placement), current.model)
        newest = await self._term.turns.newest()
        # `rebase` drops the old learner before it first awaits: its figures are not published in between.
        published = await self._tables.change(key, lambda latest: _in_place_of(latest, fresh))
        await self._term.learners.rebase(key, published, newest)
        return _published(published) | {"learns_from_sequence": newest + 1}

    async def explain(self, data: bytes) -> dict[str, Any]:
        """{model?, placement?, and an ExplainRequest} -> what would happen to that turn, and why."""
        request = _parse(data, ExplainRequest)
        key = self._key(request)
        held = self._term.learners.held.get(key)
        return explain(
            request,
            Table(self._tables.find(key)),
            held.learner if held else None,
            held.policy if held else "",
        )

    async def _publish(self, which: Which, edit: Callable[[TableSnapshot], TableSnapshot]) -> dict[str, Any]:
        return _published(await self._tables.change(self._key(which), edit))


def _parse(data: bytes, kind: type[Any]) -> Any:
    """An empty request is one with all defaults. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data or b"{}", type=kind)


def _in_place_of(latest: TableSnapshot, fresh: TableSnapshot) -> TableSnapshot:
    """`fresh` with what holds whatever the figures are."""
    return msgspec.structs.replace(
        fresh,
        weights=fresh.weights or latest.weights,
        limits=fresh.limits or latest.limits,
        explore_share=latest.explore_share,
        survival=latest.survival,
        pause_ms=latest.pause_ms,
        link_bytes_per_s=latest.link_bytes_per_s,
        link_setup_ms=latest.link_setup_ms,
    )


def _weighted(current: TableSnapshot, request: WeightsRequest) -> TableSnapshot:
    name, source = (
        request.slo_class,
        f"weights of {request.slo_class} set to {request.ttft:g}, {request.tpot:g}",
    )
    limits = current.limits
    if request.ttft_limit_ms is not None or request.tpot_limit_ms is not None:
        old = limits.get(name, (0.0, 0.0))
        ttft_ms, tpot_ms = (
            was if new is None else new
            for was, new in zip(old, (request.ttft_limit_ms, request.tpot_limit_ms), strict=True)
        )
        limits = limits | {name: (ttft_ms, tpot_ms)}
        source += f", limits to {ttft_ms:g} and {tpot_ms:g} ms"
    return msgspec.structs.replace(
        current,
        weights=current.weights | {name: (request.ttft, request.tpot)},
        limits=limits,
        source=source,
    )


def _placement(text: str) -> Any:
    try:
        return parse_placement(text)
    except PlacementError as error:
        raise TableError(str(error)) from error


def _published(snapshot: TableSnapshot) -> dict[str, Any]:
    return {
        "model": snapshot.model,
        "placement": snapshot.placement,
        "version": snapshot.version,
        "source": snapshot.source,
        "frozen": snapshot.frozen,
    }
