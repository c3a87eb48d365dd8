"""What is known, in words and numbers, for `status`."""

from typing import Any

import msgspec

from planner.learners import Held
from ppd.core.learning.learner import Learned
from ppd.core.records import TableSnapshot


def describe_table(snapshot: TableSnapshot) -> dict[str, Any]:
    return {
        "model": snapshot.model,
        "placement": snapshot.placement,
        "version": snapshot.version,
        "source": snapshot.source,
        "frozen": snapshot.frozen,
        "created_unix_s": snapshot.created_unix_s,
        "cells": len(snapshot.cells),
        "explore_share": snapshot.explore_share,
    }


def describe_learner(held: Held | None) -> dict[str, Any]:
    """Turns counted, and what they taught."""
    if held is None:
        return {"turns": 0, "learned": None}
    learned = held.learner.learned if held.learner else None
    return {"turns": held.turns, "learned": learned and _learned(learned)}


def _learned(learned: Learned) -> dict[str, Any]:
    return {
        "prior_version": learned.prior_version,
        "samples": learned.samples,
        "unfit": dict(learned.unfit),
        "explored": learned.explored,
        "cells_visited": len(learned.ratios.cells),
        "ratios": {
            path: {"ttft": _short(pair.ttft.mean), "tpot": _short(pair.tpot.mean)}
            for path, pair in learned.ratios.paths.items()
        },
        "drifting": learned.drifting,
        "drift_alarms": {name: drift.alarms for name, drift in learned.drift.items()},
        "p_ms_per_token": _short(learned.prefill.ms_per_token()),
        "pause_ms_per_token": {
            worker: _short(found.pause_ms) for worker, found in learned.interference.items()
        },
        "link": {name: _short(each) for name, each in msgspec.structs.asdict(learned.link.cost()).items()},
        "survival": [[_short(p) for p in row] for row in learned.survival.grid()],
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
