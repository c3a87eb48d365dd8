"""Whether two engines can exchange KV, and if not, why: a message that names both sides."""

from ppd.core.records import KV_FIELDS, WorkerRecord


def why_not(one: WorkerRecord, other: WorkerRecord) -> str:
    """What keeps `one` and `other` from exchanging KV; empty if they can."""
    unlike = [
        f"{field.replace('_', ' ')} {getattr(one, field)!r} and {getattr(other, field)!r}"
        for field in KV_FIELDS
        if getattr(one, field) != getattr(other, field)
    ]
    if not unlike:
        return ""
    return (
        f"{one.role} {one.worker_id} and {other.role} {other.worker_id} cannot exchange KV, "
        f"they are unlike in {', '.join(unlike)}"
    )
