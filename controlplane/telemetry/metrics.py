"""The frontend's metrics. Labels are bounded: enums, statuses and kinds, never ids.

With several processes any of them answers for all: counters and histograms are summed over all processes,
dead ones too; gauges over the living ones. What each turn counts goes through `counts`.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from controlplane.telemetry import counts
from controlplane.telemetry.counts import Distribution

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TPOT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
_MICRO = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2)

REQUESTS = Counter(
    "ppd_requests",
    "Turns by path, reason and HTTP status; path none: not placed",
    ["path", "reason", "status"],
)
TTFT = Distribution(
    "ppd_ttft_seconds", "Streams: from arrival to the first token sent", ["path"], buckets=_SECONDS
)
PATH_TTFT = Distribution(
    "ppd_path_ttft_seconds", "Streams: from the decision to the first token sent", ["path"], buckets=_SECONDS
)
TPOT = Distribution(
    "ppd_tpot_seconds", "Streams: time per output token after the first", ["path"], buckets=_TPOT
)
E2E = Distribution("ppd_e2e_seconds", "Time of a whole turn", ["path"], buckets=_SECONDS)
QUEUE = Distribution("ppd_queue_seconds", "Time in the frontend's own queue", ["path"], buckets=_SECONDS)
PREFILL = Distribution("ppd_prefill_hop_seconds", "Time of the hop through P", buckets=_SECONDS)
DECISION = Distribution("ppd_decision_seconds", "Identify, decide and place", buckets=_MICRO)
TOKENS = Counter("ppd_tokens", "Tokens by kind: prompt, cached (before the turn), output", ["kind"])
KV_BYTES = Counter("ppd_kv_bytes", "KV bytes: moved P->D, or saved by serving D-local", ["kind"])
KV_FAILED = Counter("ppd_kv_failed_transfers", "KV transfers that failed, by direction", ["direction"])
KV_REPORTS_DROPPED = Counter(
    "ppd_kv_reports_dropped", "Reports of engines on their KV transfers that agents could not pass on"
)
RETRIES = Counter("ppd_retries", "Second tries of a leg, by leg and the first one's failure", ["leg", "kind"])
PAIRS_ASIDE = Counter("ppd_pairs_set_aside", "Pairs of P and D set aside since KV did not pass")
NO_KV = Counter("ppd_prefills_without_kv", "P->D turns whose P gave no KV parameters")
RELEASED = Counter("ppd_prefills_released", "Prefilled turns that died before D took them", ["result"])
MIGRATIONS = Counter("ppd_migrations", "Streams that moved to another engine in the middle")
CANCELLED = Counter(
    "ppd_cancelled", "Turns whose client hung up, by stage: queued, waiting, streaming", ["stage"]
)
REJECTED = Counter("ppd_rejected", "Requests turned away: full queue, long wait, key, its limits", ["why"])
CACHE = Counter("ppd_session_cache", "Turns expected to be cached on D, by whether they were", ["result"])
SESSIONS = Gauge("ppd_sessions", "Conversations remembered", multiprocess_mode="livesum")
STORED_RESPONSES = Gauge(
    "ppd_stored_responses", "Responses whose engine is known", multiprocess_mode="livesum"
)
SESSION_READS = Counter("ppd_session_reads", "Look-ups of unknown sessions in NATS", ["result"])
RUNNING = Gauge("ppd_running", "Turns in progress", multiprocess_mode="livesum")
QUEUED = Gauge("ppd_queued", "Turns waiting in the frontend", multiprocess_mode="livesum")
RECORDS = Counter("ppd_turn_records", "Turn records by fate", ["result"])
LOOP_LAG = Gauge(
    "ppd_loop_lag_seconds", "The latest that a timer was in the last second", multiprocess_mode="livemax"
)
ACCESS_LINES = Counter("ppd_access_log_lines", "Lines of the access log by fate", ["result"])
WORKERS = Gauge("ppd_workers", "Ready workers", ["model", "role"], multiprocess_mode="livemax")


def exposition() -> bytes:
    """All of it as Prometheus text."""
    counts.hand_over()
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest()
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
