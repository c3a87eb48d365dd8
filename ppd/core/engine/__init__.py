"""A model of one vLLM engine: step times, scheduler, prefix cache, KV capacity, leases.

Pure: time comes in as an argument. The simulator runs it in virtual time, the simulated engine in real time.
"""

from ppd.core.engine.blocks import BlockPool
from ppd.core.engine.config import EngineConfig
from ppd.core.engine.engine import Engine
from ppd.core.engine.link import Link, Port
from ppd.core.engine.request import Event, EventKind, Request, RequestTooLargeError

__all__ = [
    "BlockPool",
    "Engine",
    "EngineConfig",
    "Event",
    "EventKind",
    "Link",
    "Port",
    "Request",
    "RequestTooLargeError",
]
