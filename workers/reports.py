"""How the connector, inside the engine, reports to the agent beside it: datagrams on a Unix socket."""

import msgspec

from ppd.core.records import BadRecordError, KvHeld, KvMoved, decode, encode

REPORTS_SOCKET = "reports.sock"
LARGEST_BYTES = 200_000


class QueuedTokens(msgspec.Struct):
    """Prompt tokens that the engine accepted and has not computed yet."""

    tokens: int


Report = KvMoved | KvHeld | QueuedTokens


def pack(report: Report) -> bytes:
    """A word that says what it is, a space, JSON."""
    if isinstance(report, QueuedTokens):
        return b"queued %d" % report.tokens
    return (b"moved " if isinstance(report, KvMoved) else b"held ") + encode(report)


def unpack(data: bytes) -> Report:
    """Raises BadRecordError for bytes that are no report."""
    kind, _, rest = data.partition(b" ")
    if kind == b"queued" and rest.isdigit():
        return QueuedTokens(int(rest))
    if kind == b"moved":
        return decode(rest, KvMoved)
    if kind == b"held":
        return decode(rest, KvHeld)
    raise BadRecordError(f"no report begins with {kind[:20]!r}")
