"""Jaeger's query API, as its own UI uses it: `GET /api/traces/{id}` and `GET /api/traces?service=…`.

Times are in microseconds since the epoch. Source: jaegertracing.io, "APIs", HTTP JSON (internal).
"""

import time
from typing import Any

import aiohttp
import msgspec

from ppd.runtime.endpoints import redacted

_TIMEOUT = aiohttp.ClientTimeout(total=30, connect=5)
SEARCH_LIMIT = 500  # traces that one search looks at


class JaegerError(RuntimeError):
    """Jaeger cannot be asked, or has no such trace; the message is for the user."""


class Tag(msgspec.Struct):
    key: str
    value: Any = None


class Reference(msgspec.Struct):
    refType: str = "CHILD_OF"
    traceID: str = ""
    spanID: str = ""


class Log(msgspec.Struct):
    timestamp: int = 0
    fields: list[Tag] = []


class JaegerSpan(msgspec.Struct):
    traceID: str
    spanID: str
    operationName: str
    startTime: int
    duration: int
    references: list[Reference] | None = None
    tags: list[Tag] | None = None
    logs: list[Log] | None = None
    processID: str = ""


class Process(msgspec.Struct):
    serviceName: str = ""
    tags: list[Tag] | None = None


class JaegerTrace(msgspec.Struct):
    traceID: str
    spans: list[JaegerSpan] = []
    processes: dict[str, Process] = {}


class _Failure(msgspec.Struct):
    msg: str = ""


class _Answer(msgspec.Struct):
    data: list[JaegerTrace] | None = None
    errors: list[_Failure] | None = None


class Jaeger:
    """One Jaeger; to be used as an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._shown = redacted(self._url)

    async def __aenter__(self) -> "Jaeger":
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def trace(self, trace_id: str) -> JaegerTrace:
        """Raises JaegerError, also where there is no such trace."""
        found = await self._get(f"/api/traces/{trace_id}", {})
        if not found:
            raise JaegerError(f"Jaeger has no trace {trace_id}: not sampled, not arrived yet, or expired")
        return found[0]

    async def search(self, service: str, tags: dict[str, str], since_s: float) -> list[JaegerTrace]:
        """At most SEARCH_LIMIT traces that began in the last `since_s`. Raises JaegerError."""
        now_us = int(time.time() * 1e6)
        query = {
            "service": service,
            "start": str(now_us - int(since_s * 1e6)),
            "end": str(now_us),
            "limit": str(SEARCH_LIMIT),
        }
        if tags:
            query["tags"] = msgspec.json.encode(tags).decode()
        return await self._get("/api/traces", query)

    async def _get(self, path: str, query: dict[str, str]) -> list[JaegerTrace]:
        try:
            async with self._session.get(self._url + path, params=query) as response:
                raw = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise JaegerError(
                f"{self._shown} cannot be asked: {str(error) or type(error).__name__}"
            ) from error
        if status == 404:
            return []
        try:
            answer = msgspec.json.decode(raw, type=_Answer)
        except msgspec.DecodeError as error:
            raise JaegerError(
                f"{self._shown}{path} answered {status}, which is no Jaeger's: {error}"
            ) from error
        if status != 200:
            why = "; ".join(failure.msg for failure in answer.errors or []) or "no reason given"
            raise JaegerError(f"{self._shown}{path} answered {status}: {why}")
        return answer.data or []
