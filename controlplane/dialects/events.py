"""Streams of named server-sent events, as Anthropic's Messages and OpenAI's Responses have them."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from controlplane.dialects.base import Seen
from controlplane.dialects.sent_text import Choice, Sent

_EVENT, _DATA = b"event: ", b"\ndata: "
_END = b"\n\n"


def event(name: str, data: bytes) -> bytes:
    """One event as bytes."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def parts(raw: bytes) -> tuple[bytes, bytes]:
    """The name and the data of one event; both empty where it is none."""
    head, found, data = raw.partition(_DATA)
    if not found or not head.startswith(_EVENT):
        return b"", b""
    return head[len(_EVENT) :], data


class EventWatch(ABC):
    """One stream. Events pass unchanged; only those that contain one of `markers` are parsed."""

    markers: tuple[bytes, ...]
    last_events: tuple[bytes, ...]  # beginnings of the names of the events that end a stream

    def __init__(self, read: Callable[[bytes], list[Choice]], cached_tokens: int | None) -> None:
        """`read`: what an event says, for `sent`."""
        self.seen = Seen()
        self.sent = Sent(read)
        self._cached_tokens = cached_tokens
        self._carry = b""
        self._last = b""

    @abstractmethod
    def clean(self, name: bytes, data: bytes) -> bytes:
        """An event's data as the client gets it. Raises msgspec.DecodeError."""

    def resume(self, cached_tokens: int | None) -> None:
        raise NotImplementedError("these streams do not move to other engines")

    def feed(self, data: bytes) -> bytes:
        if self._carry or not data.endswith(_END):
            data = self._carry + data
            cut = data.rfind(_END) + 2
            if cut == 1:
                self._carry = data
                return b""
            self._carry, data = data[cut:], data[:cut]
        if any(marker in data for marker in self.markers):
            data = b"".join(self._filtered(each) for each in data.split(_END)[:-1])
        self._last = data
        self.sent.add(data)
        return data

    def _filtered(self, raw: bytes) -> bytes:
        name, data = parts(raw)
        if data and any(marker in data for marker in self.markers):
            raw = _EVENT + name + _DATA + self.clean(name, data)
        return raw + _END

    def end(self) -> bytes:
        rest, self._carry = self._carry, b""
        final = (self._last + rest).rstrip().rpartition(_END)[2]
        self.seen.done = parts(final)[0].startswith(self.last_events)
        self.seen.mark = self.sent.mark()
        self.seen.kind = self.sent.kind()
        return rest
