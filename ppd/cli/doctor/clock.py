"""Whether this machine's clock is right, by the kernel's own word and by the clocks of etcd and NATS.

Sessions and spans carry times of the clock: where nodes disagree, a trace shows effects before causes, and a
session may be taken for an old one.
"""

import asyncio
import ctypes
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import aiohttp
import msgspec
import nats.errors

from ppd.cli.doctor.findings import Finding, failed, not_applicable, ok, warn
from ppd.cli.doctor.wanted import Requirements
from ppd.runtime.bus import Bus
from ppd.runtime.endpoints import redacted

_ASK_S = 3.0
_TOLERATED_S = 0.5
_WRONG_S = 30.0
_SYNCHRONIZE = "run chrony or systemd-timesyncd on every node"
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized
_silent = logging.getLogger("ppd.cli.doctor")
_silent.disabled = True


class Offset(NamedTuple):
    """How far another clock is ahead of this one; the truth is within `within_s` of it."""

    seconds: float
    within_s: float

    @property
    def surely_s(self) -> float:
        """The least difference that this proves."""
        return max(0.0, abs(self.seconds) - self.within_s)


def offset(before_unix_s: float, theirs_unix_s: float, after_unix_s: float, resolution_s: float) -> Offset:
    """`theirs` was read somewhere between `before` and `after`, and rounded down to `resolution_s`."""
    middle = (before_unix_s + after_unix_s) / 2
    return Offset(
        theirs_unix_s + resolution_s / 2 - middle, (after_unix_s - before_unix_s) / 2 + resolution_s / 2
    )


def kernel_synchronized() -> bool | None:
    """Whether a time service keeps this clock, as the kernel knows; None: it does not tell."""
    timex = (ctypes.c_long * 64)()  # struct timex is smaller; all zero: only ask
    state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    return None if state < 0 else state != _TIME_ERROR


async def etcd_offset(endpoint: str) -> Offset | None:
    """By the date in the head of its HTTP answers, which is in whole seconds; None: it gives none."""
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    timeout = aiohttp.ClientTimeout(total=_ASK_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            before = time.time()
            async with session.get(f"{url.rstrip('/')}/version") as answer:
                after = time.time()
                theirs = parsedate_to_datetime(answer.headers["Date"])
    except (aiohttp.ClientError, OSError, TimeoutError, KeyError, ValueError):
        return None
    return offset(before, theirs.timestamp(), after, resolution_s=1.0)


async def nats_offset(server: str) -> Offset | None:
    """By the time in its answer about this user; None: it gives none (before NATS 2.10)."""
    bus = Bus([server], "ppd-doctor", _silent)
    try:
        await asyncio.wait_for(bus.connect(), _ASK_S)
        before = time.time()
        answer = await bus.nc.request("$SYS.REQ.USER.INFO", b"", timeout=_ASK_S)
        after = time.time()
        theirs: str = msgspec.json.decode(answer.data)["server"]["time"]
        whole, _, rest = theirs.rstrip("Z").partition(".")
        seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")
    except (nats.errors.Error, OSError, TimeoutError, KeyError, TypeError, ValueError, msgspec.DecodeError):
        return None
    finally:
        await bus.close()
    return offset(before, seconds, after, resolution_s=0.0)


Ask = Callable[[str], Awaitable[Offset | None]]


async def clock(
    wanted: Requirements,
    synchronized: Callable[[], bool | None] = kernel_synchronized,
    ask_etcd: Ask = etcd_offset,
    ask_nats: Ask = nats_offset,
) -> Finding:
    asked = [(ask_etcd, address) for address in wanted.etcd] + [
        (ask_nats, address) for address in wanted.nats
    ]
    answers = await asyncio.gather(*(ask(address) for ask, address in asked))
    known = {
        redacted(address): found
        for (_, address), found in zip(asked, answers, strict=True)
        if found is not None
    }
    kept = synchronized()
    details = {
        "synchronized": kept,
        "offset_s": {address: round(o.seconds, 3) for address, o in known.items()},
    }
    if known:
        address, worst = max(known.items(), key=lambda item: item[1].surely_s)
        found = f"{address} is {worst.seconds:+.2f} s from this clock, give or take {worst.within_s:.2f} s"
        if worst.surely_s > _WRONG_S:
            return failed(found, _SYNCHRONIZE, **details)
        if worst.surely_s > _TOLERATED_S:
            return warn(found, _SYNCHRONIZE, **details)
        if kept is not False:
            return ok(found, **details)
        return warn(f"{found}, but no time service keeps this clock", _SYNCHRONIZE, **details)
    if kept is None:
        return not_applicable("the kernel does not tell, and no --etcd or --nats is named to compare with")
    if not kept:
        return warn(
            "no time service keeps this machine's clock",
            f"{_SYNCHRONIZE}; one node alone needs none",
            **details,
        )
    return ok("a time service keeps this machine's clock", **details)
