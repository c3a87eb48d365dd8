"""Turns of one conversation's kind, and the table before they were learned from."""

import msgspec

from ppd.core import seeds
from ppd.core.names import Reason, Route
from ppd.core.placement import parse_placement
from ppd.core.records import TurnRecord

SEED = msgspec.structs.replace(seeds.nearest(parse_placement("2P2D"), "m"), explore_share=0.01)


def record(**fields) -> TurnRecord:
    default = {
        "request_id": "r",
        "ended_unix_s": 0.0,
        "model": "m",
        "placement": "2P2D",
        "path": Route.D_LOCAL,
        "reason": Reason.TABLE,
        "turn": 3,
        "cell": "large/mid_bal@1",
        "n_in_tokens": 100,
        "ttft_ms": 500.0,
        "tpot_ms": 50.0,
    }
    return TurnRecord(**(default | fields))


def turn_of(**fields) -> TurnRecord:
    """A later turn by its features, with no cell named."""
    default = {
        "request_id": "r",
        "ended_unix_s": 0.0,
        "model": "m",
        "placement": "2P2D",
        "path": Route.D_LOCAL,
        "reason": Reason.TABLE,
        "turn": 3,
        "n_in_tokens": 100,
        "n_ctx_tokens": 1000,
        "n_out_tokens": 100,
        "ttft_ms": 50.0,
        "tpot_ms": 10.0,
        "qps": 1.0,
    }
    return TurnRecord(**(default | fields))
