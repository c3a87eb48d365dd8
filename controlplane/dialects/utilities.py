"""Endpoints by which no token is made: they count tokens, or turn text into tokens and back."""

from collections.abc import Mapping

import msgspec

from controlplane.dialects import body as bodies
from controlplane.dialects.base import Dialect, Request, Seen, Usage
from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.fields import drop_internal, model_of, read
from controlplane.dialects.prompt_size import PromptSize
from controlplane.errors import OPENAI, ErrorShape


class _Body(msgspec.Struct):
    model: str = ""


class _Answer(msgspec.Struct):
    count: int = 0  # of /tokenize
    input_tokens: int = 0  # of /v1/messages/count_tokens


_decoder = msgspec.json.Decoder(_Body)
_answers = msgspec.json.Decoder(_Answer)


class Utility(Dialect):
    """One such endpoint; any engine of the model answers it."""

    not_found_is_final = True

    def __init__(self, operation: str, errors: ErrorShape = OPENAI) -> None:
        self.operation = operation
        self.errors = errors

    def parse(
        self, data: bytes, headers: Mapping[bytes, bytes], prefixes: Prefixes, caller: str = ""
    ) -> Request:
        fields, parsed = read(data, _decoder)
        model = model_of(parsed.model)
        drop_internal(fields)
        return Request(dialect=self, fields=fields, model=model, size=PromptSize(), one_engine=True)

    def hold_to(self, request: Request, max_tokens: int) -> None:
        """No answer has tokens of its own."""

    def whole(self, body: bytes, seen: Seen, cached_tokens: int | None) -> bytes:
        found = _answers.decode(body)
        seen.usage = Usage.of(found.count or found.input_tokens, 0, None)
        fields = bodies.split(body)
        internals = [fields.pop(name, None) for name in bodies.INTERNALS]
        return bodies.join(fields) if any(each is not None for each in internals) else body
