"""Questions to the planner's micro service, on behalf of an operator."""

from typing import Any

import msgspec
import nats.errors

from controlplane.errors import ApiError
from ppd.core.names import planner_subject
from ppd.runtime.bus import Bus, BusError

_ANSWER_S = 8.0


class PlannerClient:
    def __init__(self, bus: Bus, namespace: str) -> None:
        self._bus = bus
        self._namespace = namespace

    async def ask(self, verb: str, request: dict[str, Any]) -> Any:
        """The answer as plain data. Raises ApiError: the planner's own refusal, 503 where nobody answers."""
        subject = planner_subject(self._namespace, verb)
        try:
            reply = await self._bus.nc.request(subject, msgspec.json.encode(request), timeout=_ANSWER_S)
        except nats.errors.NoRespondersError:
            raise ApiError(503, "no planner leads just now", retry_after_s=2) from None
        except (TimeoutError, nats.errors.Error, BusError, OSError):
            raise ApiError(503, "NATS or the planner does not answer", retry_after_s=2) from None
        headers = reply.headers or {}
        if "Nats-Service-Error" in headers:
            code = headers.get("Nats-Service-Error-Code", "500")
            raise ApiError(int(code) if code.isdecimal() else 500, headers["Nats-Service-Error"])
        return msgspec.json.decode(reply.data)
