"""A request, and the adapter for the API by which it came.

A dialect reads a request, derives P's and D's requests from it, and follows the answer on its way to the
client. Everything else about a turn is the same for all dialects.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from controlplane.dialects.body import Fields
from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.prompt_size import PromptSize
from controlplane.dialects.sent_text import Sent
from controlplane.errors import OPENAI, ErrorShape
from ppd.core.identity import AnswerMark, Message
from ppd.core.retention import AnswerKind


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """An answer's token counts, in OpenAI's form."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int:
        """-1 where the engine does not say."""
        details = self.prompt_tokens_details
        return -1 if details is None or details.cached_tokens is None else details.cached_tokens

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int | None) -> "Usage":
        """From counts that an API has in another form."""
        return cls(prompt, completion, _Details(cached))


class Seen:
    """What an answer told about itself."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.mark: AnswerMark | None = None
        self.kind = AnswerKind.PLAIN
        self.response_id = ""  # by which the client can refer to the answer
        self.done = False  # the stream's last event was seen


class Prefilled(NamedTuple):
    """P's answer: the KV parameters for D, or the whole answer if P's one token ended it."""

    body: bytes
    kv: bytes | None  # as P wrote them
    finished: bool
    prompt_tokens: int
    cached_tokens: int  # -1 = P does not say


class Watch(Protocol):
    """One stream on its way to the client, over all engines that take part in it."""

    seen: Seen
    sent: Sent

    def feed(self, data: bytes) -> bytes:
        """What the client gets now, of `data` and of an incomplete event before it."""

    def end(self) -> bytes:
        """The engine's stream has ended; returns what is left of an incomplete event."""

    def resume(self, cached_tokens: int | None) -> None:
        """Another engine continues the stream."""


class Request(msgspec.Struct, kw_only=True):
    """One request as the client asked for it."""

    dialect: "Dialect"
    fields: Fields  # of the body, as the client wrote them, without fields that clients must not set
    model: str
    base: str = ""  # the model that this name stands for, by the registry
    size: PromptSize  # of the prompt, as far as it can be read
    messages: list[Message] = []  # the history; empty where the request has none that can be read
    keys: list[int] = []  # of the history: see ppd.core.identity
    explicit_id: str = ""  # the client's own id of the conversation, with the caller's name
    cache_key: str = ""  # shared by requests with the same beginning; with the caller's name
    stream: bool = False
    wants_usage: bool = True  # in a stream
    n: int = 1
    limit_tokens: int | None = None
    one_engine: bool = False  # it cannot be handed from P to D
    previous: str = ""  # the stored response that it continues, or asks for
    keeps: bool = False  # its answer may be kept, and referred to by its id

    def __post_init__(self) -> None:
        self.base = self.base or self.model

    @property
    def generating(self) -> "Generating":
        """The dialect of a turn. Raises TypeError where no token is made."""
        if not isinstance(self.dialect, Generating):
            raise TypeError(f"{self.dialect.operation} generates nothing")
        return self.dialect

    @property
    def streaming(self) -> "Streaming":
        """The dialect of an answer that is streamed. Raises TypeError where there is no such answer."""
        if not isinstance(self.dialect, Streaming):
            raise TypeError(f"{self.dialect.operation} has no streams")
        return self.dialect


class Dialect(ABC):
    """One endpoint's API."""

    operation: str  # OpenTelemetry's gen_ai.operation.name
    errors: ErrorShape = OPENAI
    generates = False  # True: the model makes tokens, so that a request is a turn
    # A 404 is about what the client asked for and not the engine's failure: no other engine is tried.
    not_found_is_final = False

    @abstractmethod
    def parse(
        self, data: bytes, headers: Mapping[bytes, bytes], prefixes: Prefixes, caller: str = ""
    ) -> Request:
        """Read a request's body. `prefixes`: of earlier bodies. `caller`: the name of its API key.

        Raises ApiError.
        """

    @abstractmethod
    def hold_to(self, request: Request, max_tokens: int) -> None:
        """Limit the answer to `max_tokens`. Raises ApiError where the client asks for more."""

    @abstractmethod
    def whole(self, body: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
        """The client's form of an answer that is not streamed; fills `seen`. `cached_tokens`: what usage
        reports as cached; None: the engine's own figure. Raises msgspec.DecodeError.
        """


class Streaming(Dialect):
    """An API whose answers may come as a stream."""

    @abstractmethod
    def watch(self, request: Request, cached_tokens: int | None) -> Watch:
        """Follow a stream."""

    def begun(self, data: bytes) -> bool:
        """Whether the first bytes of a stream show that the engine has made a token."""
        return True

    def first_error(self, data: bytes) -> tuple[bytes, Any] | None:
        """The payload and code of the error that a stream begins with, if it does."""
        return None

    def response_id(self, data: bytes) -> str:
        """The id by which a client can refer to the response that a stream begins with."""
        return ""


class Generating(Streaming):
    """An API by which the model makes tokens: its requests are turns, which P and D may share."""

    generates = True

    @abstractmethod
    def one_token(self, fields: Fields) -> None:
        """Change the fields into P's request: a single token, not streamed."""

    @abstractmethod
    def prefilled(self, body: bytes) -> Prefilled:
        """Read P's answer. Raises msgspec.DecodeError."""

    @abstractmethod
    def as_stream(self, body: bytes, request: Request) -> bytes:
        """A whole answer, cleaned, as the stream that the client asked for. Raises msgspec.DecodeError."""

    def for_decode(self, request: Request) -> Fields:
        """Fields that D's request has beside the client's, so that D reports its usage. Raises ApiError."""
        return {}

    def continuation(self, request: Request, sent: Sent) -> Request | None:
        """The request by which another engine continues a stream after `sent`; None where there is none."""
        return None

    def last_event(self) -> bytes | None:
        """The event that ends a stream of which only that is missing; None where it cannot be made up."""
        return None
