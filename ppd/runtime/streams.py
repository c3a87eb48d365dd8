"""Makes NATS's streams and buckets as `ppd.core.streams` declares them, and values that fit into them."""

import zlib
from typing import Any

from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, BadRequestError, NotFoundError
from nats.js.kv import KeyValue
from prometheus_client import Counter

from ppd.core.records import Record, encode
from ppd.core.streams import Stream
from ppd.runtime.bus import Bus

RECREATED = Counter(
    "ppd_nats_streams_recreated",
    "Streams and buckets that were gone while this process used them, and were created again",
    ["stream"],
)

_NAME_IN_USE = 10058  # the stream exists with another configuration
_HEADERS_BYTES = 1024


class TooLargeError(Exception):
    """A value exceeds what the server takes; the message names object, size and limit, and what to do."""


async def ensure(bus: Bus, stream: Stream, owner: bool = False) -> StreamInfo:
    """The stream, created where it is missing; for its owner changed where its bounds differ.

    Where NATS refuses the change (for want of storage, say) the stream is used as it is, with a warning.
    """
    try:
        info = await bus.js.stream_info(stream.name)
    except NotFoundError:
        info = await _create(bus, stream)
    bus.streams_seen.add(stream.name)
    return await _update(bus, stream, info) if owner else info


async def _create(bus: Bus, stream: Stream) -> StreamInfo:
    lost = stream.name in bus.streams_seen
    try:
        info = await bus.js.add_stream(_config(stream))
    except BadRequestError as error:
        if error.err_code != _NAME_IN_USE:
            raise
        return await bus.js.stream_info(stream.name)  # somebody else made it in the meantime
    if lost:
        RECREATED.labels(stream.name).inc()
        bus.log.warning("stream %s was deleted: it is created again, empty", stream.name)
    return info


async def bucket(bus: Bus, stream: Stream, owner: bool = False) -> KeyValue:
    """The bucket that `stream` is, by `ensure`."""
    await ensure(bus, stream, owner)
    return await bus.js.key_value(stream.bucket)


def _config(stream: Stream) -> StreamConfig:
    of_bucket = bool(stream.bucket)
    return StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        **_bounds(stream),
        storage=StorageType.FILE,
        allow_direct=True,
        allow_rollup_hdrs=of_bucket,
        allow_msg_ttl=of_bucket or None,
        deny_delete=of_bucket,
    )


def _bounds(stream: Stream) -> dict[str, Any]:
    """What `ensure` keeps to the declaration; what else an operator set (replicas, placement) stays."""
    return {
        "max_age": stream.max_age_s,
        "max_bytes": stream.max_bytes,
        "max_msgs_per_subject": stream.max_per_subject,
        "duplicate_window": stream.duplicates_s,
        "discard": DiscardPolicy.OLD if stream.drop_oldest else DiscardPolicy.NEW,
    }


async def _update(bus: Bus, stream: Stream, info: StreamInfo) -> StreamInfo:
    has = info.config
    other = {name: value for name, value in _bounds(stream).items() if (getattr(has, name) or 0) != value}
    if not other:
        return info
    text = ", ".join(f"{name} {getattr(has, name)} -> {value}" for name, value in sorted(other.items()))
    try:
        info = await bus.js.update_stream(has.evolve(**other))
    except APIError as error:
        bus.log.warning("stream %s stays as it is, NATS refuses %s: %s", stream.name, text, error.description)
        return info
    bus.log.info("stream %s changed: %s", stream.name, text)
    return info


def value_of(bus: Bus, what: str, record: Record) -> bytes:
    """`record` as the value of a key: JSON, compressed where that would come near the server's limit.

    `what` names it in errors. Raises TooLargeError.
    """
    limit = bus.nc.max_payload - _HEADERS_BYTES
    plain = encode(record)
    if len(plain) <= limit // 2:
        return plain
    packed = zlib.compress(plain)
    if len(packed) > limit:
        raise TooLargeError(
            f"{what}: {len(plain)} bytes, {len(packed)} compressed, are more than NATS takes in one message "
            f"(max_payload {bus.nc.max_payload}); raise max_payload in the server's configuration"
        )
    return packed
