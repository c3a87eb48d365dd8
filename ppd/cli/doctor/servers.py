"""etcd and NATS, where the stack uses some that run already."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import nats.errors

from ppd.cli.doctor.findings import Finding, failed, not_applicable, ok, warn
from ppd.cli.doctor.wanted import Requirements
from ppd.core.names import workers_prefix
from ppd.runtime.bus import Bus
from ppd.runtime.endpoints import redacted
from ppd.runtime.etcd import Etcd, EtcdError

_CONNECT_S = 3.0
_silent = logging.getLogger("ppd.cli.doctor")  # a server that is down is a finding here, not an event to log
_silent.disabled = True

Ask = Callable[[str], Awaitable[float]]


class ServerError(Exception):
    """A server does not do what a stack needs of it; the message says what."""


async def ask_etcd(endpoint: str) -> float:
    """Seconds that a read took, after the connection was made. Raises EtcdError."""
    client = Etcd([endpoint])
    try:
        await client.list(workers_prefix("doctor"))
        began_s = time.monotonic()
        await client.list(workers_prefix("doctor"))
        return time.monotonic() - began_s
    finally:
        await client.close()


async def ask_nats(server: str) -> float:
    """Seconds of a round trip to JetStream. Raises ServerError."""
    bus = Bus([server], "ppd-doctor", _silent)
    try:
        await asyncio.wait_for(bus.connect(), _CONNECT_S)
        began_s = time.monotonic()
        await bus.js.account_info()
        return time.monotonic() - began_s
    except TimeoutError:
        raise ServerError(f"NATS {bus.where} does not answer") from None
    except (nats.errors.Error, OSError) as error:
        raise ServerError(
            f"NATS {bus.where} has no JetStream for this user: {error or type(error).__name__}"
        ) from None
    finally:
        await bus.close()


async def etcd(wanted: Requirements, ask: Ask = ask_etcd) -> Finding:
    if not wanted.etcd:
        return not_applicable("none is named by --etcd; `ppd up` starts its own")
    do = "start it, check the address, and open its port (2379) to this node"
    return await _each(wanted.etcd, ask, "etcd", do)


async def nats_server(wanted: Requirements, ask: Ask = ask_nats) -> Finding:
    if not wanted.nats:
        return not_applicable("none is named by --nats; `ppd up` starts its own")
    do = "start it with `--jetstream`, check the address, and open its port (4222) to this node"
    return await _each(wanted.nats, ask, "NATS", do)


async def _each(addresses: tuple[str, ...], ask: Ask, what: str, do: str) -> Finding:
    """Failed if none can be used, a warning if some cannot: clients go on with the others."""
    took: dict[str, float] = {}
    errors: list[str] = []
    answers = await asyncio.gather(*(ask(address) for address in addresses), return_exceptions=True)
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, float):
            took[redacted(address)] = answer
        elif isinstance(answer, EtcdError | ServerError):
            errors.append(str(answer))
        else:
            raise answer
    if not took:
        return failed("; ".join(errors), do)
    seen = ", ".join(f"{address} in {seconds * 1000:.1f} ms" for address, seconds in took.items())
    if errors:
        return warn(f"{'; '.join(errors)}; {seen}", do, seconds=took)
    return ok(f"{what} answers: {seen}", seconds=took)
