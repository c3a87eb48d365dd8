"""Back-pressure on one connection, both ways."""

import asyncio


class Flow:
    """Whether the client may be written to, and whether its requests are read."""

    __slots__ = ("_drain", "_loop", "_transport", "_unread_bytes", "reading_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._drain: asyncio.Future[None] | None = None
        self._unread_bytes = 0  # in the write buffer, at the previous call of `client_reads`
        self.write_paused = False  # the client has left too much unread
        self.reading_paused = False

    def pause_reading(self) -> None:
        if not self.reading_paused:
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self.reading_paused = False
        self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self.wake()

    async def writable(self) -> None:
        """Wait until the client has read most of what it was sent, or is gone."""
        if self.write_paused and not self._transport.is_closing():
            self._drain = self._loop.create_future()
            await self._drain

    def wake(self) -> None:
        """End a wait for the client, which reads again or is gone."""
        waiter, self._drain = self._drain, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def client_reads(self) -> bool:
        """Whether the client has answers left to read, and has read some since the previous call."""
        unread_bytes = self._transport.get_write_buffer_size()
        reads = unread_bytes not in (0, self._unread_bytes)
        self._unread_bytes = unread_bytes
        return reads
