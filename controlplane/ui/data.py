"""The page's data, for those whom `guard` lets in."""

import asyncio
import time
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from controlplane.api.parts import Parts
from controlplane.api.planner_client import PlannerClient
from controlplane.errors import ApiError
from controlplane.shared.siblings import Gauges
from controlplane.ui import cluster, table, turns
from controlplane.ui.guard import Guard
from ppd.core import cells
from ppd.core.records import TurnRecord

_DECISIONS = 60
Name = Annotated[str, Query(max_length=512)]


def _json(data: Any) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(data), media_type="application/json", headers=headers)


def router(parts: Parts) -> APIRouter:
    """To be mounted where the page looks for it."""
    settings, planner = parts.settings, PlannerClient(parts.bus, parts.settings.namespace)
    guard = Guard(settings.admin_key, settings.host)
    own = {
        "version": version("ppd"),
        "namespace": settings.namespace,
        "policy": settings.policy,
        "slo": settings.slo,
        "jaeger_url": settings.jaeger_url,
        "can_change": bool(settings.admin_key),
        "processes": settings.processes,
    }

    async def seen(request: Request) -> None:
        guard.check(dict(request.scope["headers"]), request.client.host if request.client else "")

    routes = APIRouter(dependencies=[Depends(seen)])

    def recent(model: str) -> list[TurnRecord]:
        return [record for record in parts.siblings.late() if record.model == model]

    @routes.get("/overview")
    async def overview(model: Name = "") -> Response:
        """All that moves, for one model; the first one where none is named."""
        known = cluster.models(parts.cluster, parts.tables)
        shown = model or (known[0]["name"] if known else "")
        now_s, records = asyncio.get_running_loop().time(), recent(shown)
        gate = parts.gate
        gauges = parts.siblings.total(Gauges(len(parts.sessions), gate.running, gate.queued), now_s)
        return _json(
            {
                "unix_s": time.time(),
                **own,
                "model": shown,
                "models": known,
                "etcd": parts.watch.connected,
                "nats": parts.bus.connected,
                "sessions": gauges.sessions,
                "queued": gauges.queued,
                "workers": cluster.workers(parts.cluster, shown, now_s, settings.load_stale_s),
                "late": turns.summary(records),
                "decisions": [turns.decision(record) for record in records[: -_DECISIONS - 1 : -1]],
            }
        )

    @routes.get("/table")
    async def one_table(model: Name, placement: Name) -> Response:
        found = parts.tables.table(model, placement)
        if found is None:
            raise ApiError(404, "there is no table for this model and placement yet")
        return _json(table.grid(found))

    @routes.get("/learned")
    async def learned(model: Name, placement: Name, cell: Name) -> Response:
        """What the planner believes of a cell now, published or not."""
        try:
            context, ratio, qps = cells.parse_cell(cell)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        n_in, n_out = cells.SHAPES[ratio]
        turn: dict[str, Any] = {
            "n_ctx": cells.CONTEXT_TOKENS[context],
            "n_in": n_in,
            "n_out": n_out,
            "qps": qps,
            "policy": settings.policy,
        }
        answer = await planner.ask("explain", {"model": model, "placement": placement} | turn)
        return _json(answer.get("learned"))

    @routes.get("/history")
    async def history(model: Name, placement: Name) -> Response:
        return _json(await planner.ask("table.history", {"model": model, "placement": placement}))

    @routes.get("/diff")
    async def diff(
        model: Name, placement: Name, old: Annotated[int, Query(ge=1)], new: Annotated[int, Query(ge=1)]
    ) -> Response:
        request = {"model": model, "placement": placement, "from": old, "to": new}
        return _json(await planner.ask("table.diff", request))

    return routes
