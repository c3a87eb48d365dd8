"""The way in and out of every request: who it is from, what it is called, what is told and logged of it."""

import logging
import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from controlplane.access import Access
from controlplane.access_log import AccessLog
from controlplane.errors import ApiError
from controlplane.server import WIRE
from ppd.core.names import H_DECODE, H_PREFILL, H_REASON, H_REQUEST_ID, H_ROUTE, H_TRACE_ID
from ppd.runtime import ids
from ppd.runtime.keys import ApiKey

VISIT = "ppd.visit"
Application = Callable[[Any, Any, Any], Awaitable[None]]
Send = Callable[[Any], Awaitable[None]]

_REQUEST_ID = H_REQUEST_ID.encode()
_TRACE_ID = H_TRACE_ID.encode()
_CLOSE = (b"connection", b"close")
EXPOSED = (  # headers that pages of other origins may read
    *(H_ROUTE, H_REASON, H_PREFILL, H_DECODE, H_REQUEST_ID, H_TRACE_ID),
    "retry-after",
)
_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
# What health checks, scrapes and the live page need; the page's own data is behind the admin key.
_OPEN = ("/live", "/ready", "/health", "/metrics", "/openapi.json", "/admin/", "/ui")


class Visit:
    """One request, from the first line of its head to the end of its answer."""

    __slots__ = ("headers", "key", "request_id", "shown_id", "started_s", "status", "told", "trace_id")

    def __init__(self, scope: Any) -> None:
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.key: ApiKey | None = None
        self.request_id = ids.token_hex(12)  # ours, for engines and records
        given = self.headers.get(_REQUEST_ID, b"")
        self.shown_id = given if _CLIENT_ID.fullmatch(given) else self.request_id.encode()
        parent = _TRACEPARENT.fullmatch(self.headers.get(b"traceparent", b""))
        self.trace_id = parent[1].decode() if parent else ids.token_hex(16)
        self.started_s = time.monotonic()
        self.status = 0  # as answered; 0 = not at all
        self.told: list[tuple[bytes, bytes]] = []  # the answer's headers


class Door:
    """ASGI around the whole frontend."""

    def __init__(
        self, inner: Application, access: Access, log: AccessLog | None, logger: logging.Logger
    ) -> None:
        self._inner = inner
        self._access = access
        self._access_log = log
        self._log = logger

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        visit = scope[VISIT] = Visit(scope)
        is_last = scope["extensions"][WIRE].is_last

        async def tell(message: Any) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                ids = ((_REQUEST_ID, visit.shown_id), (_TRACE_ID, visit.trace_id.encode()))
                visit.told = message["headers"] = [*message["headers"], *ids]
                if is_last():
                    visit.told.append(_CLOSE)
            await send(message)

        counted = False
        try:
            if not scope["path"].startswith(_OPEN):
                counted = scope["method"] == "POST"
                visit.key = (self._access.enter if counted else self._access.who)(visit.headers)
            await self._inner(scope, receive, tell)
        except ApiError as error:
            await _answer(tell, error)
        except Exception:
            self._log.exception("%s %s", scope["method"], scope["path"][:200])
            if not visit.status:
                await _answer(tell, ApiError(500, "internal error"))
        finally:
            if visit.key is not None and counted:
                self._access.leave(visit.key)
            if self._access_log is not None:
                self._access_log.add(_line(scope, visit))


async def _answer(tell: Send, error: ApiError) -> None:
    body = error.body()
    headers = [*error.headers(), (b"content-length", b"%d" % len(body))]
    await tell({"type": "http.response.start", "status": error.status, "headers": headers})
    await tell({"type": "http.response.body", "body": body})


def _line(scope: Any, visit: Visit) -> dict[str, Any]:
    told = dict(visit.told)
    client = scope.get("client")
    return {
        "unix_s": round(time.time(), 3),
        "pid": os.getpid(),
        "method": scope["method"],
        "path": scope["path"][:256],
        "status": visit.status or 499,  # it hung up before there was an answer
        "ms": round((time.monotonic() - visit.started_s) * 1e3, 2),
        "client": client[0] if client else "",
        "key": visit.key.name if visit.key else "",
        "route": told.get(H_ROUTE.encode(), b"").decode(),
        "reason": told.get(H_REASON.encode(), b"").decode(),
        "request_id": visit.shown_id.decode(),
        "trace_id": visit.trace_id,
    }
