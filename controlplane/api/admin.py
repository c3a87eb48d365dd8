"""What an operator asks and does, behind the admin key: workers, sessions, recent decisions, the tables."""

import asyncio
import os
import time
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from controlplane.admission.keys import is_admin
from controlplane.api.parts import Parts
from controlplane.api.planner_client import PlannerClient
from controlplane.errors import ApiError
from ppd.core.names import Route
from ppd.core.records import encode, known

Name = Annotated[str, Query(max_length=512)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Version = Annotated[int, Query(ge=1)]
Which = dict[str, Any]

# Of a turn's record, what was decided, on what grounds, and how it went; None = not known.
_DECISION = (
    *("ended_unix_s", "request_id", "client_request_id", "endpoint", "trace_id", "session_id"),
    *("model", "placement", "slo_class", "turn", "path", "reason", "cell", "score"),
    *("table_version", "explored", "prefill_worker", "decode_worker", "n_ctx_tokens"),
    *("n_in_tokens", "n_out_tokens", "status", "outcome", "ttft_ms", "tpot_ms", "kv_bytes"),
    *("path_ttft_ms", "error_type", "streamed", "n_out_at_least", "retries", "migrations"),
)


def router(parts: Parts) -> APIRouter:
    """Everything under `/admin`."""
    key = parts.settings.admin_key

    async def allowed(request: Request) -> None:
        if not is_admin(dict(request.scope["headers"]), key):
            raise ApiError(403, "this needs the admin key")

    admin = APIRouter(prefix="/admin", tags=["admin"], dependencies=[Depends(allowed)])
    _of_this_process(admin, parts)
    _of_the_planner(admin, PlannerClient(parts.bus, parts.settings.namespace))
    return admin


def _of_this_process(admin: APIRouter, parts: Parts) -> None:
    """With several processes each tells of itself, `pid` says which one it was, and of the turns of all."""

    @admin.get("/state")
    async def state() -> dict[str, Any]:
        """This frontend: its settings, load, engines and tables."""
        settings = parts.settings
        return {
            "unix_s": time.time(),
            "version": version("ppd"),
            "pid": os.getpid(),
            "processes": settings.processes,
            "namespace": settings.namespace,
            "policy": settings.policy,
            "slo": settings.slo,
            "etcd": parts.watch.connected,
            "nats": parts.bus.connected,
            "sessions": len(parts.sessions),
            "running": parts.gate.running,
            "queued": parts.gate.queued,
            "workers": _workers(parts),
            "tables": [
                {
                    "model": table.model,
                    "placement": table.placement,
                    "version": table.version,
                    "source": table.snapshot.source,
                    "frozen": table.snapshot.frozen,
                    "in_use": parts.cluster.placement(table.model) == table.placement,
                }
                for table in parts.tables.all().values()
            ],
        }

    @admin.get("/workers")
    async def workers() -> list[dict[str, Any]]:
        """Every worker, with its last load report and this frontend's own load on it."""
        return _workers(parts)

    @admin.get("/sessions")
    async def sessions(limit: Limit = 100) -> dict[str, Any]:
        """The sessions used last."""
        return {
            "total": len(parts.sessions),
            "sessions": [
                {
                    "session_id": session.id,
                    "turn": session.turn,
                    "decode_worker": session.decode_worker,
                    "prefill_worker": session.prefill_worker,
                    "path": session.last_path,
                    "tokens": session.marks[-1].total_tokens if session.marks else 0,
                }
                for session in parts.sessions.newest(limit)
            ],
        }

    @admin.get("/decisions")
    async def decisions(
        limit: Limit = 50,
        path: Route | None = None,
        reason: Name = "",
        session: Name = "",
        model: Name = "",
        request: Name = "",
    ) -> list[dict[str, Any]]:
        """The last decisions, newest first, and how they turned out; `request` is either id of a request."""
        wanted = {"path": path, "reason": reason, "session_id": session, "model": model}
        filters = {name: value for name, value in wanted.items() if value}
        found = [
            each
            for each in reversed(parts.siblings.late())
            if all(getattr(each, name) == value for name, value in filters.items())
            and (not request or request in (each.request_id, each.client_request_id))
        ]
        return [{name: known(getattr(each, name)) for name in _DECISION} for each in found[:limit]]

    @admin.get("/turns")
    async def turns(limit: Limit = 50) -> Response:
        """The most recent turn records, newest first."""
        newest = parts.siblings.late()[::-1][:limit]
        return Response(
            b"[" + b",".join(encode(each) for each in newest) + b"]", media_type="application/json"
        )


def _workers(parts: Parts) -> list[dict[str, Any]]:
    now_s, stale_s = asyncio.get_running_loop().time(), parts.settings.load_stale_s
    return [
        {
            "worker_id": worker.id,
            "name": worker.name,
            "role": worker.record.role,
            "model": worker.record.model,
            "status": worker.record.status,
            "running": worker.running,
            "prefill_tokens": worker.prefill_tokens,
            "resting": worker.resting(now_s),
            "load": msgspec.to_builtins(view) if (view := worker.view(now_s, stale_s)).age_s < 1e9 else None,
        }
        for worker in parts.cluster.workers.values()
    ]


def _of_the_planner(admin: APIRouter, planner: PlannerClient) -> None:
    """Questions and orders that go on to whichever planner leads; 503 while none does."""

    async def which(model: Name = "", placement: Name = "") -> Which:
        """Both may be left out where only one table fits."""
        return {"model": model, "placement": placement}

    Table = Annotated[Which, Depends(which)]

    @admin.get("/planner")
    async def status() -> Any:
        """The planner that leads, and what it learned."""
        return await planner.ask("status", {})

    @admin.get("/table")
    async def table(one: Table, version: Annotated[int, Query(ge=0)] = 0) -> Any:
        """A table as it was published; version 0 is the newest."""
        return await planner.ask("table.get", one | ({"version": version} if version else {}))

    @admin.get("/table/history")
    async def history(one: Table) -> Any:
        """The versions that are kept, oldest first."""
        return await planner.ask("table.history", one)

    @admin.get("/table/diff")
    async def diff(one: Table, old: Version, new: Version) -> Any:
        """Verdicts that changed and figures that moved between two versions."""
        return await planner.ask("table.diff", one | {"from": old, "to": new})

    @admin.post("/table/rollback")
    async def rollback(one: Table, version: Version) -> Any:
        """An older version again, frozen until unfrozen."""
        return await planner.ask("rollback", one | {"version": version})

    @admin.post("/table/freeze")
    async def freeze(one: Table) -> Any:
        """Stop the online loop from publishing."""
        return await planner.ask("freeze", one)

    @admin.post("/table/unfreeze")
    async def unfreeze(one: Table) -> Any:
        """Let it publish again."""
        return await planner.ask("unfreeze", one)
