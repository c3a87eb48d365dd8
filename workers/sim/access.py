"""The bearer token of a simulated engine, asked for where vLLM asks for its own."""

import hashlib
import secrets

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # as vLLM's GUARDED_PREFIX


def guard(key: str) -> Middleware:
    """Refuses requests to the API that do not carry `key`; health and metrics are open."""
    expected = _digest(key)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and secrets.compare_digest(_digest(token), expected)
        if request.path.startswith(_GUARDED) and request.method != "OPTIONS" and not known:
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return check


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
