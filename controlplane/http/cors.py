"""Cross-origin requests (CORS): which pages may call, and which headers they may read."""

from controlplane.http.exchange import Exchange
from controlplane.http.http_request import Headers, HttpRequest
from ppd.core.names import H_DECODE, H_PREFILL, H_REASON, H_REQUEST_ID, H_ROUTE, H_TRACE_ID

_EXPOSED = ", ".join(
    (H_ROUTE, H_REASON, H_PREFILL, H_DECODE, H_REQUEST_ID, H_TRACE_ID, "retry-after")
).encode()
_METHODS = b"GET, POST"
_MAX_AGE_S = b"600"


class Cors:
    """The origins that the operator allows; `*` allows all."""

    def __init__(self, origins: list[str]) -> None:
        self._origins = {origin.encode("latin-1", "replace") for origin in origins}
        self._all = b"*" in self._origins

    def _allows(self, origin: bytes) -> bool:
        return bool(origin) and (self._all or origin in self._origins)

    def headers(self, request: HttpRequest) -> Headers:
        """CORS headers of the answer to any request."""
        vary = [] if self._all else [(b"vary", b"Origin")]
        origin = request.headers.get(b"origin", b"")
        if not self._allows(origin):
            return vary
        return [
            (b"access-control-allow-origin", b"*" if self._all else origin),
            (b"access-control-expose-headers", _EXPOSED),
            *vary,
        ]

    def is_preflight(self, request: HttpRequest) -> bool:
        """Whether a browser asks if a page may send its request."""
        headers = request.headers
        return (
            request.method == "OPTIONS"
            and b"origin" in headers
            and b"access-control-request-method" in headers
        )

    def answer(self, exchange: Exchange) -> None:
        """Answer a preflight request."""
        headers, response = exchange.request.headers, exchange.response
        method = headers[b"access-control-request-method"]
        if not self._allows(headers[b"origin"]) or method not in _METHODS.split(b", "):
            response.send(400, [(b"content-type", b"text/plain")], b"this origin or method may not call")
            return
        allowed = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _MAX_AGE_S)]
        if wished := headers.get(b"access-control-request-headers"):
            allowed.append((b"access-control-allow-headers", wished))
        response.send(200, allowed, b"")
