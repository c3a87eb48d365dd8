"""The way in and out of every request: its ids, its API key, CORS, its line in the access log."""

import os
import re
import time
from typing import Any

from controlplane.admission.keys import Access
from controlplane.errors import ApiError
from controlplane.http.cors import Cors
from controlplane.http.exchange import Exchange
from controlplane.telemetry.access_log import AccessLog
from ppd.core.names import H_REASON, H_REQUEST_ID, H_ROUTE, H_TRACE_ID
from ppd.runtime import ids
from ppd.runtime.keys import ApiKey

_REQUEST_ID = H_REQUEST_ID.encode()
_TRACE_ID = H_TRACE_ID.encode()
_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# What health checks, scrapes and the live page need; the page's own data is behind the admin key.
_OPEN = ("/live", "/ready", "/health", "/metrics", "/openapi.json", "/admin/", "/ui")


class Visit:
    """The caller of a request, and the request's ids."""

    __slots__ = ("client_id", "key", "request_id", "shown_id", "started_s", "target", "trace_id")

    def __init__(self, headers: dict[bytes, bytes]) -> None:
        self.key: ApiKey | None = None
        self.target: Any = None  # what it asks for
        self.request_id = ids.token_hex(12)  # ours, which is unique
        given = headers.get(_REQUEST_ID, b"")
        self.client_id = given.decode() if _CLIENT_ID.fullmatch(given) else ""
        self.shown_id = (self.client_id or self.request_id).encode()
        parent = _TRACEPARENT.fullmatch(headers.get(b"traceparent", b""))
        self.trace_id = parent[1].decode() if parent else ids.token_hex(16)
        self.started_s = time.monotonic()


class Entry:
    """What happens to every request before and after it is served: ids, API keys, CORS, the access log."""

    def __init__(self, access: Access, cors: Cors | None, log: AccessLog | None) -> None:
        self._access = access
        self._cors = cors
        self._access_log = log

    def judge(self, exchange: Exchange) -> ApiError | None:
        """Give the request its ids and find its API key; without a key it is refused at once."""
        request = exchange.request
        visit = exchange.visit = Visit(request.headers)
        common = exchange.response.common = [
            (_REQUEST_ID, visit.shown_id),
            (_TRACE_ID, visit.trace_id.encode()),
        ]
        if self._cors is not None:
            common += self._cors.headers(request)
            if self._cors.is_preflight(request):
                return None
        if self._access.open or unguarded(request.path):
            return None
        try:
            visit.key = self._access.who(request.headers)
        except ApiError as error:
            return error
        return None

    def preflight(self, exchange: Exchange) -> bool:
        """Whether this was a browser's CORS preflight, which is answered now."""
        if self._cors is None or not self._cors.is_preflight(exchange.request):
            return False
        self._cors.answer(exchange)
        return True

    def enter(self, exchange: Exchange) -> ApiKey | None:
        """Count the request against its key's limits; `leave` must follow with what is returned.

        Raises ApiError (429).
        """
        key: ApiKey | None = exchange.visit.key
        if key is None or exchange.request.method != "POST":
            return None
        self._access.enter(key)
        return key

    def leave(self, key: ApiKey | None) -> None:
        if key is not None:
            self._access.leave(key)

    def log(self, exchange: Exchange) -> None:
        """Write the request's line of the access log."""
        if self._access_log is not None:
            self._access_log.add(_line(exchange))


def unguarded(path: str) -> bool:
    """Whether a path is served without an API key."""
    return path.startswith(_OPEN)


def traced(exchange: Exchange, trace_id: str) -> None:
    """Put the id of the request's trace into the answer's headers and the access log."""
    exchange.visit.trace_id = trace_id
    exchange.response.common[1] = (_TRACE_ID, trace_id.encode())


def _line(exchange: Exchange) -> dict[str, Any]:
    visit: Visit = exchange.visit
    request, response = exchange.request, exchange.response
    answered = dict(response.headers)
    peer = exchange.peer
    return {
        "unix_s": round(time.time(), 3),
        "pid": os.getpid(),
        "method": request.method,
        "path": request.path[:256],
        "status": response.status or 499,  # the client hung up before there was an answer
        "ms": round((time.monotonic() - visit.started_s) * 1e3, 2),
        "client": peer[0] if peer else "",
        "key": visit.key.name if visit.key else "",
        "route": answered.get(H_ROUTE.encode(), b"").decode(),
        "reason": answered.get(H_REASON.encode(), b"").decode(),
        "request_id": visit.shown_id.decode(),
        "trace_id": visit.trace_id,
    }
