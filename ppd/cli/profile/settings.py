"""The flags of `ppd profile`."""

import re
from pathlib import Path

from pydantic import Field, field_validator

from ppd.cli.table.where import PlannerAddress
from ppd.core.cells import QPS_LEVELS
from ppd.runtime.settings import CommaList, Secret, secret

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_QUICK_S = 120.0


class ProfileSettings(PlannerAddress):
    """Measure the table on a live cluster: every cell on P->D, D-local and pull-back, through its frontend.

    The cluster should serve nothing else meanwhile. Paths are forced, so the frontend needs PPD_ADMIN_KEY in
    its environment, and this command the same. Ctrl-C ends it; the same command goes on where it was.
    """

    frontend: str = Field("", description="its URL; empty: the stack of this folder, else port 8000")
    model: str = Field("", description="needed where the frontend serves several")
    out: Path = Field(Path("profile"), description="folder of the journal, the table and the report")
    budget: str = Field("", description="time to spend, such as 90s, 10m or 2h; empty: every cell once")
    quick: bool = Field(False, description="a budget of 2 minutes")
    cells: CommaList = Field([], description="patterns of context/turn, such as 'small/*,*/mid_bal'")
    levels: CommaList = Field([], description="QPS levels, such as 0.5,1,2; empty: all that it can serve")
    turns: int = Field(2, ge=2, le=16, description="turns of each conversation; all after the first count")
    conversations: int = Field(6, ge=2, description="of each point, at least")
    hardware: str = Field("", description="name of the hardware; empty: as the workers registered it")
    fresh: bool = Field(False, description="begin anew, dropping what is in the folder")
    publish: bool = Field(False, description="hand the table to the planner at the end, so that it serves")
    report_only: bool = Field(False, description="measure nothing: table and report from the journal")
    admin_key: Secret = secret("the frontend's admin key")

    @field_validator("budget")
    @classmethod
    def _is_duration(cls, value: str) -> str:
        if value and not re.fullmatch(r"\d+(\.\d+)?[smh]", value):
            raise ValueError("write for example 90s, 10m or 2h")
        return value

    @field_validator("levels")
    @classmethod
    def _are_levels(cls, value: list[str]) -> list[str]:
        known = {f"{level:g}" for level in QPS_LEVELS}
        if unknown := [each for each in value if each not in known]:
            raise ValueError(f"{', '.join(unknown)}: the levels are {', '.join(sorted(known, key=float))}")
        return value

    @property
    def budget_s(self) -> float | None:
        if self.budget:
            return float(self.budget[:-1]) * _UNITS_S[self.budget[-1]]
        return _QUICK_S if self.quick else None
