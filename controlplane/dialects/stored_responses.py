"""What can be done with a response that an engine keeps: get, delete, cancel, list its input."""

from collections.abc import Mapping

from controlplane.dialects.base import Request, Seen
from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.prompt_size import PromptSize
from controlplane.dialects.responses import ResponseReader


class StoredResponse(ResponseReader):
    """One such operation. The engine that keeps the response carries it out, and no token is made."""

    def __init__(self, operation: str) -> None:
        self.operation = operation

    def parse(
        self, data: bytes, headers: Mapping[bytes, bytes], prefixes: Prefixes, caller: str = ""
    ) -> Request:
        return Request(dialect=self, fields={}, model="", size=PromptSize(), one_engine=True)

    def hold_to(self, request: Request, max_tokens: int) -> None:
        """The response has its length already."""

    def whole(self, body: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
        # Its tokens were counted when the response was made.
        return super().whole(body, Seen(), None)
