"""The FastAPI surface: models, health, metrics, the OpenAPI document; what an operator asks is in `admin`."""

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.routing import Match

from controlplane.api import admin
from controlplane.api.document import document
from controlplane.api.parts import Parts
from controlplane.dialects.endpoints import shape_of
from controlplane.errors import ApiError, no_such_model
from controlplane.telemetry import metrics
from ppd.core.names import Role
from ppd.core.policies import needs_table


def build(parts: Parts) -> FastAPI:
    app = FastAPI(
        title="PPD frontend", version=version("ppd"), docs_url=None, redoc_url=None, redirect_slashes=False
    )
    document(app)
    _errors(app)
    _public(app, parts)
    app.include_router(admin.router(parts))
    return app


def _errors(app: FastAPI) -> None:
    def shaped(request: Request, error: ApiError) -> Response:
        headers = {name.decode(): value.decode() for name, value in error.headers()}
        return Response(shape_of(request.url.path).body(error), error.status, headers)

    async def api(request: Request, error: Any) -> Response:
        return shaped(request, error)

    async def http(request: Request, error: Any) -> Response:
        answer = shaped(request, ApiError(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        if error.status_code == 405:
            answer.headers["allow"] = ", ".join(_methods(app, request.scope))
        return answer

    async def invalid(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first.get("loc", ())[1:])
        return shaped(request, ApiError(400, f"{param}: {first.get('msg', 'invalid')}", param=param))

    async def unexpected(request: Request, error: Any) -> Response:
        return shaped(request, ApiError(500, "internal error"))

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


def _methods(app: FastAPI, scope: Any) -> list[str]:
    """All methods that the path has, over all of its routes; the framework names only those of one route."""
    routes = (route for route in app.routes if route.matches(scope)[0] is not Match.NONE)
    return sorted({method for route in routes for method in getattr(route, "methods", None) or ()})


def _public(app: FastAPI, parts: Parts) -> None:
    @app.get("/v1/models", tags=["openai"])
    async def models() -> dict[str, Any]:
        """The models that can be served now."""
        data = [_model(parts, name) for name, _ in parts.cluster.names() if parts.cluster.servable(name)]
        return {"object": "list", "data": data}

    @app.get("/v1/models/{model:path}", tags=["openai"])
    async def model(model: str) -> dict[str, Any]:
        """One model."""
        if not parts.cluster.servable(model):
            raise no_such_model(model)
        return _model(parts, model)

    @app.get("/live", tags=["health"])
    async def live() -> dict[str, str]:
        """This process runs."""
        return {"status": "live"}

    @app.get("/ready", tags=["health"])
    async def ready() -> JSONResponse:
        """At least one model can be served."""
        health = _health(parts)
        return JSONResponse({"status": health["status"]}, 200 if health["ready"] else 503)

    @app.get("/health", tags=["health"])
    async def health() -> JSONResponse:
        """What can be served, and what is missing."""
        state = _health(parts)
        return JSONResponse(state, 200 if state["ready"] else 503)

    @app.get("/metrics", tags=["health"])
    async def scrape() -> Response:
        """Prometheus metrics."""
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def _model(parts: Parts, name: str) -> dict[str, Any]:
    found = parts.cluster.model(name)
    lengths = [
        worker.record.max_model_len_tokens
        for worker in (found.listed.values() if found is not None else ())
        if worker.record.max_model_len_tokens
    ]
    parents = [worker.record.other_models.get(name) for worker in found.listed.values()] if found else []
    return {
        "id": name,
        "object": "model",
        "created": int(parts.cluster.models_seen.get(name) or time.time()),
        "owned_by": "ppd",
        "parent": next((parent for parent in parents if parent), None),
        "max_model_len": min(lengths, default=None),
    }


def _health(parts: Parts) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for name, found in parts.cluster.by_model():
        roles = found.ready
        counts = {role.value: len(workers) for role, workers in roles.items()}
        missing = [role.value for role in (Role.PREFILL, Role.DECODE) if not roles[role]]
        if roles[Role.REPLICA] and len(missing) == 2:
            missing = []
        placement = parts.cluster.placement(name)
        table = parts.tables.table(name, placement)
        models[name] = {
            "servable": parts.cluster.servable(name),
            "placement": placement,
            "ready": counts,
            "missing": missing,
            "suspect": parts.cluster.suspects(name),
            "table_version": table.version if table else None,
            "lacks_table": table is None and _chooses(parts, counts),
        }
    servable = any(model["servable"] for model in models.values())
    outages = [
        what for what, up in (("etcd", parts.watch.connected), ("nats", parts.bus.connected)) if not up
    ]
    lacking = any(model["missing"] or model["suspect"] or model["lacks_table"] for model in models.values())
    whole = servable and not outages and not lacking
    return {
        "status": "ok" if whole else "degraded" if servable else "unavailable",
        "ready": servable,
        "models": models,
        "policy": parts.settings.policy,
        "etcd": "connected" if parts.watch.connected else "away",
        "nats": "connected" if parts.bus.connected else "away",
        "sessions": len(parts.sessions),
        "why": _why(models, outages),
    }


def _chooses(parts: Parts, ready: Mapping[str, int]) -> bool:
    """Whether this model has more than one path, and a table to choose by."""
    return bool(ready[Role.PREFILL] and ready[Role.DECODE]) and needs_table(parts.settings.policy)


def _why(models: dict[str, Any], outages: list[str]) -> list[str]:
    reasons = [f"{name} is away; the last known view serves on" for name in outages]
    if not models:
        reasons.append("no worker is registered")
    for name, model in models.items():
        if model["missing"]:
            reasons.append(f"{name}: no {' and no '.join(model['missing'])} worker is ready")
        if model["lacks_table"]:
            reasons.append(
                f"{name}: no table for {model['placement']} has come from the planner; later turns stay on "
                "their decode worker. `ppd status` shows the planner's trouble"
            )
        reasons += [f"{name}: {worker} is suspect, {why}" for worker, why in model["suspect"].items()]
    return reasons
