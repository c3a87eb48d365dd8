"""The micro service `ppd-planner`: JSON in, JSON out, errors in the service's own headers."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.micro import add_service
from nats.micro.request import Request, ServiceError
from nats.micro.service import Service

from planner.tables import ConflictError, UnknownTableError
from ppd.core.names import PLANNER_SERVICE, planner_subject
from ppd.core.table import TableError
from ppd.runtime.streams import TooLargeError

_CLOSE_DEADLINE_S = 2.0


class NotLeadingError(Exception):
    """Asked of a planner that does not lead any more: it is silent, and its successor answers."""


Handler = Callable[[bytes], Awaitable[Any]]


def refusal(error: Exception) -> ServiceError:
    """`error` as the caller gets it: 4xx for what it may mend, 503 for an outage."""
    match error:
        case msgspec.DecodeError() | TableError() | TooLargeError() | ValueError():
            return ServiceError("400", str(error))
        case UnknownTableError():
            return ServiceError("404", str(error))
        case ConflictError():
            return ServiceError("409", str(error))
        case nats.errors.Error() | TimeoutError():
            return ServiceError("503", f"JetStream: {str(error) or type(error).__name__}")
    return ServiceError("500", type(error).__name__)


class Api:
    """Serves `handlers` by verb, each on `ppd.{namespace}.planner.{verb}`, while it is open."""

    def __init__(self, namespace: str, planner_id: str, logger: logging.Logger) -> None:
        self._namespace = namespace
        self._planner_id = planner_id
        self._log = logger
        self._service: Service | None = None

    async def open(self, nc: Client, handlers: Mapping[str, Handler], metadata: dict[str, str]) -> None:
        """Each planner is a queue group of its own: a leader that hangs keeps its subscription for minutes,
        and must not be handed what its successor should answer.
        """
        service = await add_service(
            nc,
            name=PLANNER_SERVICE,
            version=version("ppd"),
            description="owns the PPD table",
            metadata={"namespace": self._namespace, **metadata},
            queue_group=self._planner_id,
        )
        self._service = service
        for verb, handler in handlers.items():
            await service.add_endpoint(
                name=verb.replace(".", "-"),
                subject=planner_subject(self._namespace, verb),
                handler=self._answering(verb, handler),
            )

    def _answering(self, verb: str, handler: Handler) -> Callable[[Request], Awaitable[None]]:
        async def answer(request: Request) -> None:
            try:
                answered = await handler(request.data)
            except NotLeadingError:
                return
            except Exception as error:
                refused = refusal(error)
                if refused.code == "500":
                    self._log.exception("%s failed", verb)
                raise refused from error
            await request.respond(msgspec.json.encode(answered))

        return answer

    async def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await asyncio.wait_for(service.stop(), _CLOSE_DEADLINE_S)
