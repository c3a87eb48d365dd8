"""The page's routes: its files for everybody, its data for those whom `guard` lets in."""

import asyncio
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response

from controlplane.errors import ApiError
from controlplane.ui import assets, cluster, table, turns
from controlplane.ui.guard import Guard
from controlplane.ui.planner import Planner
from ppd.core.records import TurnRecord

if TYPE_CHECKING:
    from controlplane.surface import Parts

_DECISIONS = 60
Name = Annotated[str, Query(max_length=512)]


def mount(app: FastAPI, parts: "Parts") -> None:
    """Adds `/ui` to the frontend's surface."""
    app.include_router(_files(assets.read()), include_in_schema=False)
    guard = Guard(parts.settings.admin_key, parts.settings.host)
    app.include_router(_data(parts, guard), prefix="/ui/data", include_in_schema=False)


def _files(found: dict[str, assets.Asset]) -> APIRouter:
    router = APIRouter()

    def serve(name: str, request: Request) -> Response:
        asset = found.get(name)
        if asset is None:
            raise ApiError(404, "the page has no such file")
        headers = assets.HEADERS | {"etag": asset.etag}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers=headers, media_type=asset.media_type)

    @router.get("/ui")
    async def page(request: Request) -> Response:
        return serve("index.html", request)

    @router.get("/ui/{name}")
    async def file(name: str, request: Request) -> Response:
        return serve(name, request)

    return router


def _json(data: Any) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(data), media_type="application/json", headers=headers)


def _data(parts: "Parts", guard: Guard) -> APIRouter:
    settings, planner = parts.settings, Planner(parts.bus, parts.settings.namespace)

    async def seen(request: Request) -> None:
        guard.check(request.headers, request.client.host if request.client else "")

    router = APIRouter(dependencies=[Depends(seen)])

    def recent(model: str) -> list[TurnRecord]:
        return [record for record in parts.ledger.recent if record.model == model]

    @router.get("/overview")
    async def overview(model: Name = "") -> Response:
        """All that moves, for one model; the first one where none is named."""
        known = cluster.models(parts.cluster, parts.tables)
        shown = model or (known[0]["name"] if known else "")
        now_s, records = asyncio.get_running_loop().time(), recent(shown)
        return _json(
            {
                "unix_s": time.time(),
                "version": version("ppd"),
                "namespace": settings.namespace,
                "policy": settings.policy,
                "slo": settings.slo,
                "jaeger_url": settings.jaeger_url,
                "can_change": guard.has_key,
                "model": shown,
                "models": known,
                "etcd": parts.watch.connected,
                "nats": parts.bus.connected,
                "sessions": len(parts.sessions),
                "workers": cluster.workers(parts.cluster, shown, now_s, settings.load_stale_s),
                "late": turns.summary(records),
                "decisions": [turns.decision(record) for record in records[: -_DECISIONS - 1 : -1]],
            }
        )

    @router.get("/table")
    async def one_table(model: Name, placement: Name) -> Response:
        found = parts.tables.table(model, placement)
        if found is None:
            raise ApiError(404, "there is no table for this model and placement yet")
        return _json(table.grid(found))

    @router.get("/history")
    async def history(model: Name, placement: Name) -> Response:
        return _json(await planner.ask("table.history", {"model": model, "placement": placement}))

    @router.get("/diff")
    async def diff(
        model: Name, placement: Name, old: Annotated[int, Query(ge=1)], new: Annotated[int, Query(ge=1)]
    ) -> Response:
        request = {"model": model, "placement": placement, "from": old, "to": new}
        return _json(await planner.ask("table.diff", request))

    return router
