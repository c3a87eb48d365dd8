"""Which planner, and which of its tables."""

from typing import Any, TypeVar

from pydantic import Field

from ppd.cli import paths
from ppd.cli.stack.state import StateFile
from ppd.runtime.settings import ServiceSettings, load


class PlannerAddress(ServiceSettings):
    """Where a planner is. Without flags it is that of the stack that `ppd up` started in this folder."""


class TableSettings(PlannerAddress):
    """Names a table; both may be left out where only one fits, or only one of those runs now."""

    model: str = Field("", description="whose table; empty: the one that runs")
    placement: str = Field("", description="such as 1P3D; empty: the one that runs")

    def which(self) -> dict[str, Any]:
        """The beginning of every request."""
        return {"model": self.model, "placement": self.placement}


def local_frontend() -> str:
    """URL of the frontend of the stack in this folder; empty where none runs."""
    local = StateFile(paths.home()).read()
    return local.endpoint if local else ""


P = TypeVar("P", bound=PlannerAddress)


def read(kind: type[P], argv: list[str], prog: str) -> P:
    """The settings of a verb, with the local stack's addresses where none are given."""
    settings = load(kind, argv, prog)
    if not settings.model_fields_set & {"etcd", "nats", "namespace"}:
        local = StateFile(paths.home()).read()
        if local is not None and local.nats:
            settings.etcd, settings.nats, settings.namespace = [local.etcd], [local.nats], local.namespace
    return settings
