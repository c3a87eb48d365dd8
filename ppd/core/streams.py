"""The streams and KV buckets of NATS, each declared once: name, bounds and age, whoever makes it first.

| stream | owner | holds |
| --- | --- | --- |
| PPD_TURNS | planner | a record of each finished turn |
| PPD_TABLE | planner | the tables, the last versions of each |
| PPD_LEARNER | planner | what was learned, with the turns that it was learned from |
| PPD_SESSIONS | frontend | where each conversation lives, until its TTL |

Any service may create a stream that it needs and that is missing. Only the owner, which has the settings,
changes one that exists.
"""

from typing import NamedTuple

from ppd.core.names import (
    LEARNER_BUCKET,
    SESSIONS_BUCKET,
    TABLE_BUCKET,
    TURNS_STREAM,
    stream_name,
    turns_subject,
)

TABLE_HISTORY = 32  # versions of each table
TURNS_AGE_S = 7 * 86_400.0
TURNS_BYTES = 1 << 30
SESSIONS_BYTES = 1 << 30
_DUPLICATES_S = 120.0


class Stream(NamedTuple):
    """A stream of JetStream. A bucket is one too, with `KV_` before its name and one subject per key."""

    name: str
    subjects: tuple[str, ...]
    max_age_s: float = 0.0  # 0 = kept for ever
    max_bytes: int = -1  # -1 = no bound
    max_per_subject: int = -1
    drop_oldest: bool = True  # when it is full; else new messages are refused
    bucket: str = ""  # its name, if it is a bucket

    @property
    def duplicates_s(self) -> float:
        """How long JetStream knows message ids; never longer than messages are kept."""
        return min(_DUPLICATES_S, self.max_age_s or _DUPLICATES_S)


def _bucket(name: str, history: int, ttl_s: float, max_bytes: int, drop_oldest: bool) -> Stream:
    return Stream(f"KV_{name}", (f"$KV.{name}.>",), ttl_s, max_bytes, history, drop_oldest, name)


def turns(namespace: str, age_s: float = TURNS_AGE_S, max_bytes: int = TURNS_BYTES) -> Stream:
    subject = turns_subject(namespace, "").rstrip(".") + ".>"
    return Stream(stream_name(TURNS_STREAM, namespace), (subject,), age_s, max_bytes)


def tables(namespace: str) -> Stream:
    """Bounded by the planner: 256 tables, and the versions of each."""
    return _bucket(stream_name(TABLE_BUCKET, namespace), TABLE_HISTORY, 0.0, -1, drop_oldest=False)


def learners(namespace: str) -> Stream:
    """Bounded as the tables are."""
    return _bucket(stream_name(LEARNER_BUCKET, namespace), 2, 0.0, -1, drop_oldest=False)


def sessions(namespace: str, ttl_s: float) -> Stream:
    return _bucket(stream_name(SESSIONS_BUCKET, namespace), 1, ttl_s, SESSIONS_BYTES, drop_oldest=True)
