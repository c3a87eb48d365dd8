"""What the micro service is asked: one struct per kind of request."""

import msgspec

from ppd.core.decision import WorkerView
from ppd.core.records import TableSnapshot
from ppd.core.score import DEFAULT_SLO

_P = WorkerView("prefill")
_D = WorkerView("decode")


class Which(msgspec.Struct, kw_only=True):
    """Names a table; model and placement may be left out where only one fits, or only one of those runs."""

    model: str = ""
    placement: str = ""


class WhichVersion(Which, kw_only=True):
    version: int = 0  # 0 = the newest


class DiffRequest(Which, kw_only=True):
    from_version: int = msgspec.field(default=0, name="from")  # 0 = the one before `to`
    to_version: int = msgspec.field(default=0, name="to")  # 0 = the newest


class WeightsRequest(Which, kw_only=True):
    slo_class: str
    ttft: float
    tpot: float
    ttft_limit_ms: float | None = None  # None = as it is; 0 = no limit
    tpot_limit_ms: float | None = None


class RollbackRequest(Which, kw_only=True):
    version: int


class RebuildRequest(Which, kw_only=True):
    table: TableSnapshot | None = None  # such as a profile wrote; without one, the nearest seed


class ExplainRequest(Which, kw_only=True):
    """A turn as the frontend would see it; tokens are tokens, `qps` conversations a second.

    Without a worker's view the table alone decides, as it does when load reports are missing.
    """

    turn: int = 2
    n_in: int = 128
    n_out: int = 128
    n_ctx: int = 1024
    qps: float = 1.0
    d_cached: int | None = None  # None = the whole conversation before this turn
    p_cached: int = 0
    local_streak: int = 0
    idle_s: float = 0.0
    slo_class: str = DEFAULT_SLO
    policy: str = ""  # empty = that of the newest turn, else the default one
    prefill: WorkerView = _P
    decode: WorkerView = _D
