"""What a client's connection belongs to: the application, the limits, and what is open just now."""

from collections.abc import Coroutine
from typing import Any, NamedTuple
from typing import Protocol as Interface

from controlplane.errors import ApiError
from controlplane.http.exchange import Exchange


class Limits(NamedTuple):
    """What a client may cost before the application sees anything of it."""

    head_bytes: int = 64 << 10
    head_s: float = 20.0
    body_bytes: int = 16 << 20
    body_s: float = 30.0
    idle_s: float = 75.0  # between two requests: longer than the 60 s after which most proxies close theirs
    connections: int = 16_384


class Application(Interface):
    """What serves exchanges."""

    def judge(self, exchange: Exchange) -> ApiError | None:
        """The head is there: an answer that does not depend on the body."""

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer it."""

    def lost(self, exchange: Exchange) -> None:
        """The client hung up before its request was complete."""


class OpenConnection(Interface):
    """A client's connection, as the server manages it."""

    def sweep(self, now_s: float) -> None:
        """End what has passed its deadline."""

    def stop(self) -> None:
        """Take no more requests."""

    def abort(self) -> None:
        """Cut it off now."""


class ServerContext(Interface):
    """What a connection belongs to."""

    application: Application
    limits: Limits
    connections: set[OpenConnection]
    serving: set[Exchange]
    stopping: bool

    def failed(self, exchange: Exchange, error: Exception) -> None:
        """The application raised."""
