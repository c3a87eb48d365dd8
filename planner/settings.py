"""The planner's settings."""

from typing import Annotated

from pydantic import Field

from ppd.core.learning.publication import EVERY_S, EXPLORE, MAX_EXPLORE
from ppd.runtime.settings import ServiceSettings

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class PlannerSettings(ServiceSettings):
    """Flags of `ppd planner`."""

    host: str = Field("127.0.0.1", description="address of /metrics, /live and /ready")
    port: int = Field(8010, ge=0, le=65535, description="their port; 0 picks a free one")
    explore: float = Field(
        EXPLORE,
        ge=0,
        le=MAX_EXPLORE,
        description="share of turns that may take the other path to keep it measured; 0: off",
    )
    settle_s: Seconds = Field(10.0, description="a changed placement gets a table of its own after this long")
    turns_age_s: Seconds = Field(7 * 86_400.0, description="how long turn records are kept")
    turns_bytes: Count = Field(1 << 30, description="turn records kept, at most")
    checkpoint_s: Seconds = Field(
        1.0, description="what was learned is saved, and turns acknowledged, so often"
    )
    publish_s: Seconds = Field(EVERY_S, description="least time between two published versions of one table")
