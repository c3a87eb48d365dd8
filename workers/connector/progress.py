"""NIXL's progress thread, made to sleep while nothing happens.

NIXL's Python API creates each agent with a delay of 0 for that thread, which then polls without a pause: a
whole core for each engine, for as long as it lives. UCX wakes a thread that sleeps in `poll` by itself; the
delay is only how long it sleeps if nothing does. Where cores are few, a thread that spins takes the model's.
"""

import importlib
import logging
from typing import Any

_log = logging.getLogger("vllm.ppd")


def sleep_between_polls(delay_ms: int) -> None:
    """For agents made from now on in this process; 0 leaves NIXL as it is.

    Where a NIXL has no such setting any more it is left as it is, with a warning.
    """
    if delay_ms <= 0:
        return
    try:
        bindings = importlib.import_module("nixl._api").nixlBind
        own = bindings.nixlAgentConfig
        delay = own.pthrDelay
    except (ImportError, AttributeError) as error:
        _log.warning("NIXL's progress thread is left to poll without a pause: %s", error)
        return
    if not hasattr(own, "ppd_patient"):
        bindings.nixlAgentConfig = _patient(own, delay, delay_ms * 1000)


def _patient(own: Any, delay: Any, delay_us: int) -> Any:
    def get(self: Any) -> int:
        return int(delay.__get__(self))

    def put(self: Any, value: int) -> None:
        delay.__set__(self, value or delay_us)

    return type("PatientAgentConfig", (own,), {"ppd_patient": True, "pthrDelay": property(get, put)})
