"""What a user asked for with `ppd up`, and why it cannot be had."""

from dataclasses import dataclass

from ppd.cli.model.catalog import Model
from ppd.core.placement import Placement


class PlanError(RuntimeError):
    """The stack cannot be started like this; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What the user asked for."""

    placement: Placement
    model: Model
    host: str
    port: int
    engine: str  # vllm or sim
    hardware: str  # the profile of simulated engines
    gpus: tuple[str, ...]
    namespace: str
    engine_args: tuple[str, ...]
    policy: str  # empty: the frontend's default
