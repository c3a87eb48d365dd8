"""The records that cross a process, defined once.

Each carries `v`, the version of its meaning. Unknown fields are ignored and new fields have defaults, so
that old and new processes run side by side. JSON on the wire, so that `etcdctl get` and `nats sub` show
something that a person can read.
"""

import zlib
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ppd.core.names import Outcome, Provenance, Reason, Role, Route, WorkerStatus


class Record(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Base of all records."""


# Fields of a WorkerRecord that must be equal where two engines shall exchange KV.
KV_FIELDS = (
    "model",
    "backend",
    "engine_version",
    "kv_connector",
    "block_size_tokens",
    "kv_bytes_per_token",
    "dtype",
    "kv_layout",
    "kv_compatibility",
)


class WorkerRecord(Record):
    """One incarnation of an engine, at `/ppd/{ns}/workers/{worker_id}` under its agent's lease."""

    worker_id: str  # unique per incarnation: a restarted engine is a new worker
    name: str  # stable over restarts, such as `d0`
    role: Role
    model: str  # the name that clients ask for
    url: str  # http://host:port of the engine's API; never shown to a client
    status: WorkerStatus = WorkerStatus.STARTING
    engine_id: str = ""  # NIXL's engine id; empty for a replica
    side_channel_host: str = ""
    side_channel_port: int = 0
    kv_connector: str = ""
    backend: str = "vllm"  # vllm or sim
    engine_version: str = ""
    block_size_tokens: int = 0
    kv_bytes_per_token: int = 0
    kv_capacity_tokens: int = 0
    max_model_len_tokens: int = 0
    max_batch_tokens: int = 0  # vLLM's max_num_batched_tokens, the prefill budget of one step
    tensor_parallel: int = 1
    dtype: str = ""
    kv_layout: str = ""
    kv_compatibility: str = ""  # vLLM's own hash: model path, attention backend, NIXL protocol, ...
    bidirectional: bool = False  # pull-back (D->P) is switched on
    releases: bool = False  # a prefill engine that frees a turn's blocks when asked to at the turn's end
    hardware: str = ""
    model_path: str = ""  # the model's folder on the worker's host, if it is one
    started_unix_s: float = 0.0
    other_models: dict[str, str] = {}  # further names -> the model that each adapts; empty: a second name
    v: int = 1

    def kv_signature(self) -> tuple[object, ...]:
        """What two engines must have in common to exchange KV over NIXL."""
        return tuple(getattr(self, field) for field in KV_FIELDS)


class WorkerLoad(Record):
    """What an engine is busy with, four times a second on `ppd.{ns}.load.{worker_id}`."""

    worker_id: str
    seq: int = 0
    running: int = 0  # requests in the running batch
    waiting: int = 0
    kv_use: float = 0.0  # 0..1
    queued_prefill_tokens: int = 0  # prompt tokens accepted but not computed yet
    prefix_hit_rate: float = 0.0  # over the last ten seconds, 0..1
    itl_ms: float = 0.0  # mean inter-token latency over the last ten seconds; 0 = none seen
    prefill_tokens_per_s: float = 0.0  # throughput over the last ten seconds; 0 = none seen
    prefill_speed_tokens_per_s: float = 0.0  # tokens per second spent prefilling; 0 = not known
    decode_tokens_per_s: float = 0.0
    ttft_ms: float = 0.0  # mean over the last ten seconds; 0 = none seen
    tpot_ms: float = 0.0
    preemptions: int = 0  # since the engine's start
    dropped_reports: int = 0  # of the KV connector, that the agent could not pass on; since the agent's start
    silent_s: float = 0.0  # how long the engine has not answered; the figures above are older
    stuck_s: float = 0.0  # how long it has made no step although requests run
    v: int = 1


class KvMoved(Record):
    """One request's KV transfer on one tensor-parallel rank, on `ppd.{ns}.kv.moved.{worker_id}`.

    Published by the engine that pulled, before that turn's first token or soon after. `bytes` is 0 for a
    hand-off that needed none.
    """

    request_id: str  # the frontend's
    worker_id: str  # that pulled
    source_worker_id: str = ""
    direction: str = "p-d"  # or d-p
    bytes: int = 0
    blocks: int = 0
    cached_blocks: int = 0  # not moved: they were in the puller's prefix cache
    descriptors: int = 0
    transfer_s: float = 0.0  # NIXL's own, from post to completion
    post_s: float = 0.0
    wait_s: float = 0.0  # from the engine's start of the hand-off to the post: mostly a first handshake
    rank: int = 0
    error: str = ""  # why it failed; empty if it did not
    trace_id: str = ""
    v: int = 1


class KvHeld(Record):
    """KV of a finished turn that a decode engine holds for a pull-back, on `ppd.{ns}.kv.held.{worker_id}`.

    `params` are the `kv_transfer_params` for the prefill engine of the next turn: single use, and only
    within `hold_s` of when this arrived.
    """

    request_id: str  # the frontend's
    worker_id: str
    tokens: int = 0  # of the conversation, prompt and answer
    hold_s: float = 0.0
    params: dict[str, object] = {}
    v: int = 1


class TurnRecord(Record):
    """One finished turn, on `ppd.{ns}.turns.{model}` of the stream PPD_TURNS.

    UNSET, which is absent on the wire: not known.
    """

    request_id: str
    ended_unix_s: float
    model: str
    placement: str
    path: Route
    reason: Reason
    client_request_id: str = ""  # the client's own, where it sent one
    asked_model: str = ""  # as the client named it, where that is an adapter or a second name of `model`
    endpoint: str = ""  # the path that was called, such as /v1/messages
    outcome: Outcome = Outcome.OK
    error_type: str = ""  # why the outcome is not ok
    status: int = 200
    streamed: bool = True
    trace_id: str = ""
    session_id: str = ""
    turn: int = 1  # 1 = the conversation's first
    slo_class: str = ""
    policy: str = ""
    table_version: int = 0
    cell: str = ""
    explored: bool = False
    n_in_tokens: int = 0  # new in this turn
    n_ctx_tokens: int = 0  # of the conversation before this turn
    n_out_predicted_tokens: int = 0
    n_prompt_tokens: int | UnsetType = UNSET  # the whole prompt, as the engine counted it
    n_prompt_estimated: bool = False  # no engine's count: the answer ended too early for one
    n_out_tokens: int | UnsetType = UNSET
    n_out_at_least: bool = False  # `n_out_tokens` is a lower bound: as before
    expected_cached_tokens: int = 0  # what D was thought to hold
    cached_tokens_prefill: int = -1  # what P really had; -1 = not known or no hop
    cached_tokens_decode: int = -1  # what D really had before this turn; -1 = not known
    kept: bool | UnsetType | None = UNSET  # D still held the conversation; None = its figures do not tell
    p_missing_tokens: int = 0  # of the history, what P was thought to lack
    local_streak: int = 0  # D-local turns in a row before this one
    idle_s: float = 0.0  # since the session's last turn
    qps: float = 0.0  # conversations a second, in the sliding window
    queue_ms: float = 0.0
    prefill_ms: float = 0.0  # the hop through P
    ttft_ms: float | UnsetType = UNSET  # as the client sees it: from the request's arrival
    path_ttft_ms: float | UnsetType = UNSET  # the path's own: from the decision, without the queue
    tpot_ms: float | UnsetType = UNSET
    e2e_ms: float = 0.0
    kv_bytes: int = 0
    kv_transfer_ms: float = 0.0
    prefill_worker: str = ""
    decode_worker: str = ""
    retries: int = 0
    migrations: int = 0
    decode_running: int = 0  # D's running batch when the turn was placed
    decode_kv_use: float = 0.0
    prefill_queued_tokens: int = 0
    score: float = 0.0
    v: int = 1


def known(value: Any) -> Any:
    """A record's figure for JSON that always names it: None where it is UNSET."""
    return None if value is UNSET else value


class SessionRecord(Record):
    """A conversation, in the bucket PPD_SESSIONS, so that any frontend can take its next turn.

    `boundary` is the key of the history up to and with the last question, `after` the key of the history
    with the answer too: the next turn extends the latter, or the former where a client rewrote the answer.
    """

    session_id: str
    model: str
    turn: int
    boundary: str
    after: str
    decode_worker: str = ""
    prefill_worker: str = ""
    n_ctx_tokens: int = 0
    n_prompt_tokens: int = 0  # of n_ctx_tokens, those before the last answer
    explicit_id: str = ""  # the client's own id, if it sent one
    answer_kind: str = ""  # of the last answer: AnswerKind
    p_known_tokens: int = 0  # of this conversation, what P computed last
    local_streak: int = 0
    n_out_mean_tokens: float = 0.0
    last_unix_s: float = 0.0
    last_path: Route = Route.P_D
    trace: str = ""  # the last turn's W3C traceparent, to which the next one links
    v: int = 1


class Estimate(msgspec.Struct, kw_only=True, frozen=True):
    """A measured quantity: mean, standard deviation of one observation, and how many there were."""

    mean: float
    sd: float = 0.0
    n: float = 0.0  # may be fractional: online counts decay


class PathEstimate(msgspec.Struct, kw_only=True, frozen=True):
    """TTFT and TPOT, in ms, of one path in one cell."""

    ttft_ms: Estimate
    tpot_ms: Estimate
    provenance: Provenance = Provenance.MEASURED


class CellRecord(msgspec.Struct, kw_only=True, frozen=True):
    """One cell: context class x in/out ratio class x QPS level. `paths` is keyed by the path's value."""

    context: str
    ratio: str
    qps: float
    measured_qps: float = 0.0  # the rate it was measured at, where the level stands for it; 0 = the level's
    paths: dict[str, PathEstimate] = {}


class TableSnapshot(Record):
    """The PPD table for one model and placement, as published in the bucket PPD_TABLE."""

    model: str
    placement: str
    version: int  # grows with every publication; a frontend never goes back by itself
    hardware: str = ""
    created_unix_s: float = 0.0
    source: str = ""  # how it came about: seed, profile, online, rollback of N
    frozen: bool = False
    explore_share: float = -1.0  # of the turns; -1 = as the policy is set (the planner widens it after drift)
    pause_ms: float = (
        -1.0
    )  # by which a token that D prefills holds up each of its streams; -1 = see the cells
    link_bytes_per_s: float = 0.0  # what KV transfers reach, by the turns' records; 0 = not known
    link_setup_ms: float = 0.0  # what one takes whatever its size
    survival: list[list[float]] = []  # chance that D still holds a chat: ppd.core.learning.survival; [] = 1
    weights: dict[str, tuple[float, float]] = {}  # SLO class -> (w_ttft, w_tpot)
    limits: dict[str, tuple[float, float]] = {}  # SLO class -> (TTFT, TPOT) to keep to, in ms; 0 = none
    cells: list[CellRecord] = []
    v: int = 1


R = TypeVar("R", bound=Record)
_ZLIB = b"\x78"  # the first byte of what zlib compressed; JSON never begins with it
_MAX_UNPACKED_BYTES = 16 << 20
_encoder = msgspec.json.Encoder()


class BadRecordError(ValueError):
    """Bytes that are no such record; the message says why."""


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(data: bytes, kind: type[R], version: int = 1) -> R:
    """`data`, plain or compressed by zlib, as a record of `kind`.

    Raises BadRecordError if the bytes are not one, or if their `v` is newer than this code understands.
    """
    try:
        record = msgspec.json.decode(_unpacked(data) if data[:1] == _ZLIB else data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecordError(f"not a {kind.__name__}: {error}") from error
    if getattr(record, "v", version) > version:
        raise BadRecordError(
            f"{kind.__name__} of version {getattr(record, 'v', '?')}: this code knows {version}"
        )
    return record


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, _MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise BadRecordError(f"cannot be decompressed: {error}") from error
    if not unpacker.eof:
        raise BadRecordError(f"is cut off, or has more than {_MAX_UNPACKED_BYTES} bytes")
    return plain
