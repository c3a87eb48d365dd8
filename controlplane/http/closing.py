"""The end of a connection that the server wants to close while the client may still be sending."""

import asyncio

from controlplane.errors import ApiError
from controlplane.http.http_response import final_response

LINGER_S = 2.0
_LINGER_BYTES = 32 << 20


class Closing:
    """Says the last word, then reads and discards what still comes before it closes.

    A connection that is closed at once answers further bytes with a reset, on which many clients lose the
    answer that they were sent.
    """

    __slots__ = ("_discarded_bytes", "_loop", "_transport", "begun", "last_word")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._discarded_bytes = 0
        self.begun = False  # what the client sends is not read as HTTP any more
        self.last_word: ApiError | None = None  # to be sent after the answers to earlier requests

    def after_linger(self) -> None:
        """Close the connection once the client has had time to read."""
        self._loop.call_later(LINGER_S, self._transport.close)

    def linger(self) -> None:
        """Send the end of the stream, and close later."""
        self.begun = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self.after_linger()

    def say(self, error: ApiError) -> None:
        """Send the error as the last bytes of the connection."""
        self.last_word = None
        self._transport.write(final_response(error))
        self.linger()

    def discard(self, size_bytes: int) -> None:
        """Count bytes that are thrown away; cut off a client that sends too many."""
        self._discarded_bytes += size_bytes
        if self._discarded_bytes > _LINGER_BYTES:
            self._transport.abort()
