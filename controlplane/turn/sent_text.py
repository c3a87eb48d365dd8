"""What of a streamed answer was sent: kept as it went by, and read only when somebody asks."""

from collections.abc import Iterable, Iterator

import msgspec

from ppd.core.identity import AnswerMark, mark_of_pieces

_TOOL_CALLS = b'"tool_calls"'
_RAW_BYTES = 64 * 1024  # of events kept unread; beyond that they are boiled down to their text


class _ToolCall(msgspec.Struct):
    id: str | None = None


class _Part(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class Choice(msgspec.Struct):
    """A choice of an answer or of one of its chunks, as far as it is read."""

    index: int = 0
    delta: _Part | None = None
    message: _Part | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        part = self.delta or self.message
        return (part.content or "") if part is not None else (self.text or "")

    @property
    def tool_call_id(self) -> str:
        part = self.delta or self.message
        calls = part.tool_calls if part is not None else None
        return (calls[0].id or "") if calls else ""

    @property
    def plain(self) -> bool:
        """It holds text and nothing else."""
        part = self.delta or self.message
        return part is None or not (part.tool_calls or part.reasoning_content or part.reasoning)


class _Event(msgspec.Struct):
    choices: list[Choice] = []


_events = msgspec.json.Decoder(_Event)


def choices_of(answer: bytes) -> list[Choice]:
    """Of one JSON answer or chunk. Raises msgspec.DecodeError."""
    return _events.decode(answer).choices


def _first_choices(events: Iterable[bytes]) -> Iterator[Choice]:
    for event in events:
        if event.startswith(b"data: {"):
            try:
                choices = choices_of(event[6:])
            except msgspec.DecodeError:
                continue
            if choices:
                yield choices[0]


class Sent:
    """The events of one choice's stream."""

    def __init__(self) -> None:
        self._raw: list[bytes] = []
        self._size = 0
        self._text = ""  # of what is not raw any more
        self._tokens = 0
        self._finished = False
        self._plain = True
        self._tool_call_id = ""

    def add(self, events: bytes) -> None:
        """Whole events, as the client got them."""
        self._raw.append(events)
        self._size += len(events)
        if self._size > _RAW_BYTES:
            self._boil_down()

    def _boil_down(self) -> None:
        pieces = [self._text]
        for choice in _first_choices(event for data in self._raw for event in data.split(b"\n\n")):
            pieces.append(choice.piece)
            self._tokens += bool(choice.piece) or bool(choice.finish_reason)
            self._finished = self._finished or bool(choice.finish_reason)
            self._plain = self._plain and choice.plain
            self._tool_call_id = self._tool_call_id or choice.tool_call_id
        self._text = "".join(pieces)
        self._raw, self._size = [], 0

    @property
    def text(self) -> str:
        self._boil_down()
        return self._text

    @property
    def tokens(self) -> int:
        """Engines send a chunk for each token."""
        self._boil_down()
        return self._tokens

    def counted(self, tokens: int) -> None:
        """An engine's word on how many tokens the text is: a chunk of an engine that lags holds several."""
        self._boil_down()
        self._tokens = tokens

    @property
    def finished(self) -> bool:
        """A finish reason was among it."""
        self._boil_down()
        return self._finished

    @property
    def plain(self) -> bool:
        """It was text alone: no tool calls, no reasoning."""
        self._boil_down()
        return self._plain

    def mark(self) -> AnswerMark:
        """The answer's mark, reading no more events than that needs."""
        if not self._tool_call_id and any(_TOOL_CALLS in data for data in self._raw):
            self._boil_down()
        return mark_of_pieces(self._pieces(), self._pieces_backward(), self._tool_call_id)

    def _pieces(self) -> Iterator[str]:
        yield self._text
        for data in self._raw:
            for choice in _first_choices(data.split(b"\n\n")):
                yield choice.piece

    def _pieces_backward(self) -> Iterator[str]:
        for data in reversed(self._raw):
            for choice in _first_choices(reversed(data.split(b"\n\n"))):
                yield choice.piece
        yield self._text
