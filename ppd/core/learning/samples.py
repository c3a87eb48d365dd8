"""Which turns teach what: a turn record as evidence for one path of one cell, or why it is none."""

from enum import StrEnum

import msgspec
from msgspec import UNSET

from ppd.core import cells
from ppd.core.cells import Cell
from ppd.core.names import Outcome, Reason, Route
from ppd.core.records import TurnRecord

# The paths of these were not chosen, or were not what they say: their cost is not the path's.
_OTHER_COST = {
    Reason.FIRST_TURN,
    Reason.NOT_CACHED,
    Reason.SESSION_MOVED,
    Reason.NO_PREFILL,
    Reason.NO_DECODE,
    Reason.PREFILL_FAILED,
    Reason.ONE_ENGINE,
    Reason.PREFILL_ANSWERED,
    Reason.DECODE_FAILED,
}
_PATHS = {Route.P_D, Route.D_LOCAL, Route.P_D_PULLBACK}
_MAX_MS = 3.6e6
MAX_TOKENS = 10_000_000
_SURVIVED = 0.5  # of the tokens that D was thought to hold


class Unfit(StrEnum):
    """Why a turn teaches no path's cost."""

    FIRST = "first"
    FAILED = "failed"
    DETOUR = "detour"  # retried, migrated, or sent by need instead of by choice
    NO_TIMES = "no-times"  # its answer was not streamed: nobody saw when its tokens came
    IMPLAUSIBLE = "implausible"  # a figure that no engine has
    UNCACHED = "uncached"  # nothing of it was expected on D: no cell was measured so
    EVICTED = "evicted"  # D had lost the conversation: a full prefill, which the survival statistics hold


class Sample(msgspec.Struct, frozen=True):
    """One clean measurement."""

    cell: Cell
    path: Route
    ttft_ms: float  # the path's own
    tpot_ms: float  # 0 = not known
    n_out: int
    batch: float  # streams that D was running when the turn was placed
    d_computed: int  # tokens that D prefilled itself
    p_computed: int  # tokens that P had to compute; 0 = P took no part
    decode_worker: str


def survived(record: TurnRecord) -> bool | None:
    """Whether D still had what it was thought to hold; None where that is not known."""
    if record.outcome is Outcome.OK and record.kept is not UNSET:
        return record.kept
    if (
        record.outcome is not Outcome.OK
        or record.cached_tokens_decode < 0
        or record.expected_cached_tokens <= 0
    ):
        return None
    return record.cached_tokens_decode >= _SURVIVED * record.expected_cached_tokens


def sample_of(record: TurnRecord) -> Sample | Unfit:
    if record.outcome is not Outcome.OK or record.status != 200:
        return Unfit.FAILED
    if record.turn <= 1:
        return Unfit.FIRST
    if record.path not in _PATHS or record.reason in _OTHER_COST or record.retries or record.migrations:
        return Unfit.DETOUR
    ttft_ms, tpot_ms = _path_ttft_ms(record), record.tpot_ms or 0.0
    if ttft_ms <= 0 or tpot_ms < 0:
        return Unfit.NO_TIMES
    if max(ttft_ms, tpot_ms) > _MAX_MS or not _countable(record):
        return Unfit.IMPLAUSIBLE
    if record.path is Route.D_LOCAL and survived(record) is False:
        return Unfit.EVICTED
    if record.path is Route.D_LOCAL and 0 <= record.cached_tokens_decode < _SURVIVED * record.n_ctx_tokens:
        return Unfit.UNCACHED
    local = record.path is Route.D_LOCAL
    return Sample(
        _cell(record),
        record.path,
        ttft_ms,
        tpot_ms,
        record.n_out_tokens or 0,
        float(record.decode_running),
        _d_computed(record) if local else 0,
        0 if local else _p_computed(record),
        record.decode_worker,
    )


def _path_ttft_ms(record: TurnRecord) -> float:
    """Without the wait in the frontend's queue, which no path causes; 0 = not known."""
    if record.path_ttft_ms is not UNSET:
        return record.path_ttft_ms
    # Of a frontend that did not tell the two apart, and gave an unstreamed answer's whole time as its TTFT.
    if record.ttft_ms is UNSET or ((record.n_out_tokens or 0) > 1 and not record.tpot_ms):
        return 0.0
    return record.ttft_ms - record.queue_ms


def _countable(record: TurnRecord) -> bool:
    counts = (
        record.n_in_tokens,
        record.n_ctx_tokens,
        record.n_out_tokens or 0,
        record.n_prompt_tokens or 0,
        record.p_missing_tokens,
        record.decode_running,
    )
    return min(counts) >= 0 and max(counts) <= MAX_TOKENS


def _cell(record: TurnRecord) -> Cell:
    """The cell that the decision was made in, which rests on the predicted output; else the turn's own."""
    try:
        return cells.parse_cell(record.cell)
    except ValueError:
        return cells.cell_of(record.n_ctx_tokens, record.n_in_tokens, record.n_out_tokens or 0, record.qps)


def _d_computed(record: TurnRecord) -> int:
    if record.cached_tokens_decode < 0:
        return record.n_in_tokens
    return max(0, _prompt(record) - record.cached_tokens_decode)


def _p_computed(record: TurnRecord) -> int:
    if record.cached_tokens_prefill < 0:
        return record.n_in_tokens + record.p_missing_tokens
    return max(0, _prompt(record) - record.cached_tokens_prefill)


def _prompt(record: TurnRecord) -> int:
    return record.n_prompt_tokens or record.n_ctx_tokens + record.n_in_tokens
