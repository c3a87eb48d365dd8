"""Every name that two processes must agree on: roles, paths, reasons, keys, subjects, headers, spans."""

from enum import StrEnum
from functools import lru_cache


class Role(StrEnum):
    """What an engine does; vLLM's `kv_role` follows from it (prefill = kv_producer, decode = kv_consumer)."""

    PREFILL = "prefill"
    DECODE = "decode"
    REPLICA = "replica"

    @property
    def letter(self) -> str:
        """The letter that stands for this role in a placement such as `1P3D`."""
        return {"prefill": "P", "decode": "D", "replica": "R"}[self.value]


class WorkerStatus(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Route(StrEnum):
    """How a turn travels. The value is that of the `x-ppd-route` header."""

    P_D = "p-d"
    D_LOCAL = "d-local"
    P_D_PULLBACK = "p-d-pullback"
    REPLICA = "replica"


class Reason(StrEnum):
    """Why a path was taken: one enum for header, span attribute and metric label."""

    FIRST_TURN = "first-turn"  # no earlier turn is known: P->D
    NOT_CACHED = "not-cached"  # D is not expected to hold the conversation any more
    SESSION_MOVED = "session-moved"  # the session's D is gone or draining
    TABLE = "table"  # the verdict of the turn's own cell
    TABLE_NEAREST = "table-nearest"  # its cell is empty or tied; the nearest measured one decided
    TABLE_LIVE = "table-live"  # the table's expectation, corrected by the queues of now
    LIVE_STALE = "live-stale"  # load reports are missing or stale: the table alone decided
    NO_TABLE = "no-table"  # no table for this model and placement yet
    EXPLORE = "explore"  # the path not taken, to keep it measured
    POLICY = "policy"  # a policy without a table decided
    FORCED = "forced"  # an operator asked for this path
    NO_PREFILL = "no-prefill"  # no prefill worker is up: D, or a replica, does it all
    NO_DECODE = "no-decode"  # no decode worker is up: a replica does it all, or P does
    PREFILL_FAILED = "prefill-failed"  # the hop through P failed: D did the prefill
    ONE_ENGINE = "one-engine"  # the request cannot be handed off (for example prompt_logprobs)
    PREFILL_ANSWERED = "prefill-answered"  # P's one token ended the answer; D was not needed
    DECODE_FAILED = "decode-failed"  # the first D failed: another one took the turn
    BOUND = "bound"  # the conversation lives on a replica, which does both
    OVERLOAD_ESCAPE = "overload-escape"  # the session's D is saturated while others are not


class Outcome(StrEnum):
    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"


class Provenance(StrEnum):
    """Where a cell's figures come from."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    ONLINE = "online"


# --- etcd -----------------------------------------------------------------------------------------
LEASE_TTL_S = 10


def workers_prefix(namespace: str) -> str:
    return f"/ppd/{namespace}/workers/"


def worker_key(namespace: str, worker_id: str) -> str:
    return workers_prefix(namespace) + worker_id


def leader_key(namespace: str) -> str:
    return f"/ppd/{namespace}/planner/leader"


# --- NATS (what bounds the streams and buckets: ppd.core.streams) ---------------------------------
TURNS_STREAM = "PPD_TURNS"
TABLE_BUCKET = "PPD_TABLE"
LEARNER_BUCKET = "PPD_LEARNER"
SESSIONS_BUCKET = "PPD_SESSIONS"
PLANNER_SERVICE = "ppd-planner"
PLANNER_DURABLE = "ppd-planner"


@lru_cache(4096)
def _token(text: str) -> str:
    """`text` as one token of a NATS subject or KV key; different texts give different tokens."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else f"={ord(c):X}=" for c in text)


def load_subject(namespace: str, worker_id: str) -> str:
    return f"ppd.{_token(namespace)}.load.{_token(worker_id)}"


def kv_moved_subject(namespace: str, worker_id: str) -> str:
    """Of `KvMoved`; with `*` as worker: all of the namespace."""
    return f"ppd.{_token(namespace)}.kv.moved.{worker_id if worker_id == '*' else _token(worker_id)}"


def kv_held_subject(namespace: str, worker_id: str) -> str:
    """Of `KvHeld`; with `*` as worker: all of the namespace."""
    return f"ppd.{_token(namespace)}.kv.held.{worker_id if worker_id == '*' else _token(worker_id)}"


@lru_cache(1024)
def turns_subject(namespace: str, model: str) -> str:
    return f"ppd.{_token(namespace)}.turns.{_token(model)}"


def planner_subject(namespace: str, verb: str) -> str:
    """The subject of one endpoint of the planner's micro service, such as `table.get`."""
    return f"ppd.{_token(namespace)}.planner.{verb}"


def stream_name(base: str, namespace: str) -> str:
    """A stream's or bucket's name; the default namespace has the bare name."""
    return base if namespace == "default" else f"{base}_{_token(namespace).replace('=', '_')}"


def table_key(model: str, placement: str) -> str:
    """The KV key of one table: `{model}.{placement}`."""
    return f"{_token(model)}.{_token(placement)}"


# Keys of the bucket PPD_SESSIONS. Those of one level are conversations, and are counted as such.
def session_key(after: int) -> str:
    """Of a conversation: the history that its next turn must extend."""
    return f"{after:016x}"


def session_id_key(digest: str) -> str:
    """Of the session under a client's own id."""
    return f"id.{digest}"


def response_key(digest: str) -> str:
    """Of the worker that keeps a stored response."""
    return f"response.{digest}"


def table_version_key(namespace: str, table: str) -> str:
    """The etcd key of the newest version that `table`, by its KV key, ever had."""
    return f"/ppd/{namespace}/table-versions/{table}"


# --- fields of kv_transfer_params beside vLLM's own -----------------------------------------------
KV_TRACEPARENT = "traceparent"  # to the engine that pulls: the span under which its transfer belongs
KV_REQUEST_ID = "ppd_request_id"  # to the engine that pulls or holds: comes back in KvMoved and KvHeld
KV_RELEASE = "ppd_release"  # to a prefill engine, alone: this turn's blocks will not be asked for
KV_HOLD = "ppd_hold"  # to a decode engine: keep this turn's KV for a pull-back

# --- HTTP -----------------------------------------------------------------------------------------
H_ROUTE = "x-ppd-route"
H_REASON = "x-ppd-reason"
H_PREFILL = "x-ppd-prefill"
H_DECODE = "x-ppd-decode"
H_REQUEST_ID = "x-request-id"
H_TRACE_ID = "x-trace-id"
H_SESSION = "x-session-id"
H_SLO = "x-slo-class"
H_ADMIN = "x-ppd-admin-key"
H_FORCE = "x-ppd-force-route"  # with the admin key: the path of one turn

# --- spans ----------------------------------------------------------------------------------------
SERVICE_FRONTEND = "ppd-frontend"  # services in traces
SERVICE_KV = "ppd-kv"
SPAN_ROUTE = "ppd.route"
SPAN_PREFILL = "ppd.prefill"
SPAN_DECODE = "ppd.decode"
SPAN_KV_TRANSFER = "kv.transfer"
