"""What the page shows of the most recent turns. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from ppd.core.names import Outcome
from ppd.core.records import TurnRecord, known

_MAX_POINTS = 150  # of one path's TTFT


def summary(records: Sequence[TurnRecord]) -> dict[str, Any]:
    """Route mix, latency by path, flows between engines, and how often each cell was asked.

    `records` are one model's, oldest first. Times are in ms; a flow is its prefill engine (may be empty), its
    decode engine and its path.
    """
    by_path: dict[str, list[TurnRecord]] = {}
    for record in records:
        by_path.setdefault(record.path.value, []).append(record)
    return {
        "turns": len(records),
        "first_unix_s": records[0].ended_unix_s if records else 0.0,
        "last_unix_s": records[-1].ended_unix_s if records else 0.0,
        "all": _path(records, points=0),
        "paths": {path: _path(found, _MAX_POINTS) for path, found in sorted(by_path.items())},
        "reasons": _counted((r.path.value, r.reason.value) for r in records),
        "flows": _counted((r.prefill_worker, r.decode_worker, r.path.value) for r in records),
        "cells": Counter(r.cell for r in records if r.cell),
    }


def _path(records: Sequence[TurnRecord], points: int) -> dict[str, Any]:
    """`ttft_ms` is the client's, queue included; `path_ttft_ms` is what the path took."""
    ttft = [r.path_ttft_ms for r in records if r.path_ttft_ms is not UNSET]
    return {
        "turns": len(records),
        "failed": sum(r.outcome is not Outcome.OK for r in records),
        "ttft_ms": quantiles(r.ttft_ms for r in records if r.ttft_ms is not UNSET),
        "path_ttft_ms": quantiles(ttft)
        | {"points": [round(value, 1) for value in ttft[len(ttft) - min(points, len(ttft)) :]]},
        "tpot_ms": quantiles(r.tpot_ms for r in records if r.tpot_ms is not UNSET),
        "kv_bytes": sum(r.kv_bytes for r in records),
        "cached_tokens": sum(max(0, r.cached_tokens_decode, r.cached_tokens_prefill) for r in records),
        "prompt_tokens": sum(r.n_prompt_tokens or 0 for r in records),
    }


def quantiles(values: Iterable[float]) -> dict[str, float | None]:
    """Nearest-rank p50 and p95; None where there are no values."""
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p95": None, "n": 0}
    last = len(ordered) - 1
    return {
        "p50": round(ordered[round(last * 0.5)], 2),
        "p95": round(ordered[round(last * 0.95)], 2),
        "n": len(ordered),
    }


def _counted(items: Iterable[tuple[str, ...]]) -> list[list[Any]]:
    """Each item followed by how often it came, the most frequent first."""
    return [[*item, count] for item, count in Counter(items).most_common()]


_SHOWN = (
    *("request_id", "trace_id", "session_id", "turn", "ended_unix_s", "slo_class", "status", "outcome"),
    *("path", "reason", "cell", "score", "table_version", "explored", "prefill_worker", "decode_worker"),
    *("n_ctx_tokens", "n_in_tokens", "n_out_predicted_tokens", "n_out_tokens", "n_prompt_tokens"),
    *("expected_cached_tokens", "cached_tokens_prefill", "cached_tokens_decode", "qps", "queue_ms"),
    *("error_type", "streamed", "n_out_at_least", "path_ttft_ms"),
    *("prefill_ms", "ttft_ms", "tpot_ms", "e2e_ms", "kv_bytes", "kv_transfer_ms", "retries", "migrations"),
)


def decision(record: TurnRecord) -> dict[str, Any]:
    """One turn as the list of decisions shows it; None = not known."""
    return {name: known(getattr(record, name)) for name in _SHOWN}
