"""Questions to the planner's micro service, with an answer or a reason within seconds."""

import asyncio
import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import nats.errors

from ppd.cli.table.where import PlannerAddress
from ppd.core.names import planner_subject
from ppd.runtime.bus import Bus

AWAY, REFUSED = 1, 2  # exit statuses
_CONNECT_S = 3.0
_ANSWER_S = 10.0  # the planner's own calls to JetStream have shorter deadlines
_silent = logging.getLogger("ppd.cli.table")  # the error alone reports a planner that is away
_silent.disabled = True


class AskError(RuntimeError):
    """No answer, or a refusal; the message is for the user."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def ask(settings: PlannerAddress, verb: str, request: dict[str, Any]) -> Any:
    """The planner's answer as plain data. Raises AskError."""
    return asyncio.run(ask_async(settings, verb, request))


async def ask_async(settings: PlannerAddress, verb: str, request: dict[str, Any]) -> Any:
    """The same, within a running loop."""
    bus = Bus(settings.nats, "ppd-table", _silent)
    where = bus.where
    try:
        await asyncio.wait_for(bus.connect(), _CONNECT_S)
        reply = await bus.nc.request(
            planner_subject(settings.namespace, verb), msgspec.json.encode(request), timeout=_ANSWER_S
        )
    except nats.errors.NoRespondersError:
        raise AskError(
            f"no planner leads in namespace {settings.namespace!r} at {where}; `ppd status` says what runs",
            AWAY,
        ) from None
    except (TimeoutError, nats.errors.Error, OSError) as error:
        raise AskError(
            f"NATS at {where} does not answer: {str(error) or type(error).__name__}", AWAY
        ) from error
    finally:
        await bus.close()
    headers = reply.headers or {}
    if "Nats-Service-Error" in headers:
        outage = headers.get("Nats-Service-Error-Code", "500").startswith("5")
        raise AskError(headers["Nats-Service-Error"], AWAY if outage else REFUSED)
    return msgspec.json.decode(reply.data)


def says_errors(prog: str) -> Callable[[Callable[[list[str]], int]], Callable[[list[str]], int]]:
    """Turns an AskError of a command into a line on stderr and its exit status."""

    def wrap(command: Callable[[list[str]], int]) -> Callable[[list[str]], int]:
        @functools.wraps(command)
        def run(argv: list[str]) -> int:
            try:
                return command(argv)
            except AskError as error:
                print(f"{prog}: {error}", file=sys.stderr)
                return error.status

        return run

    return wrap
