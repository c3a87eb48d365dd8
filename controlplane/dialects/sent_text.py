"""What of a streamed answer was sent: kept as it went by, and read only when somebody asks."""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from ppd.core.identity import AnswerMark, mark_of_pieces
from ppd.core.retention import AnswerKind

_END_OF_THOUGHT = "</think>"  # of reasoning that an engine leaves in the text
_TOOL_CALLS = (b'"tool_calls"', b'"tool_use"', b'"call_id"')  # one of each API
_NOT_PLAIN = (b'"reasoning', b'"thinking', b"event: response.reasoning", b"</think>", *_TOOL_CALLS)
_NOT_TEXT = "…"
_RAW_BYTES = 64 * 1024  # of events kept unread; beyond that they are boiled down to their text


class _ToolCall(msgspec.Struct):
    id: str | None = None


class _Part(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None  # of a chat
    tokens: list[msgspec.Raw] | None = None  # of a completion


class Choice(msgspec.Struct):
    """A choice of an answer or of one of its chunks, as far as it is read."""

    index: int = 0
    delta: _Part | None = None
    message: _Part | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None  # where the client asked for them
    logprobs: _Logprobs | None = None

    @classmethod
    def of(
        cls,
        piece: str,
        *,
        reasoning: bool = False,
        tools: bool = False,
        finish: str | None = None,
        tool_call_id: str | None = None,
    ) -> "Choice":
        """What an event of another API adds."""
        calls = [_ToolCall(tool_call_id)] if tool_call_id or tools else None
        part = _Part(piece, reasoning=_NOT_TEXT if reasoning else None, tool_calls=calls)
        return cls(delta=part, finish_reason=finish)

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
    def exact_tokens(self) -> int | None:
        """How many tokens a chunk holds; None where it does not say."""
        if self.token_ids is not None:
            return len(self.token_ids)
        if self.logprobs is None:
            return None
        listed = self.logprobs.content if self.logprobs.content is not None else self.logprobs.tokens
        return None if listed is None else len(listed)

    @property
    def empty(self) -> bool:
        return self.plain and not self.piece and not self.finish_reason

    @property
    def kind(self) -> AnswerKind:
        part = self.delta or self.message
        if part is not None and (part.reasoning_content or part.reasoning):
            return AnswerKind.REASONING
        return AnswerKind.TOOLS if part is not None and part.tool_calls else AnswerKind.PLAIN

    @property
    def plain(self) -> bool:
        """It holds text and nothing else."""
        return self.kind is AnswerKind.PLAIN


class _Event(msgspec.Struct):
    choices: list[Choice] = []


_events = msgspec.json.Decoder(_Event)


def choices_of(answer: bytes) -> list[Choice]:
    """Of one JSON answer or chunk. Raises msgspec.DecodeError."""
    return _events.decode(answer).choices


def kind_with(reasoning: bool, tools: bool) -> AnswerKind:
    return AnswerKind.REASONING if reasoning else AnswerKind.TOOLS if tools else AnswerKind.PLAIN


def kind_of(text: str, kind: AnswerKind) -> AnswerKind:
    """The kind of an answer, of which the text may hold its reasoning."""
    return AnswerKind.REASONING if _END_OF_THOUGHT in text else kind


def _openai(event: bytes) -> list[Choice]:
    return choices_of(event[6:]) if event.startswith(b"data: {") else []


class Sent:
    """The events of one stream. Tokens are those of all choices, everything else is the first one's."""

    def __init__(self, read: Callable[[bytes], list[Choice]] = _openai) -> None:
        """`read`: what one event adds. It may raise msgspec.DecodeError."""
        self._read = read
        self._raw: list[bytes] = []
        self._size = 0
        self._text = ""  # of what is not raw any more
        self._tokens = 0
        self._exact = True
        self._finished = False
        self._kind = AnswerKind.PLAIN
        self._tool_call_id = ""

    def add(self, events: bytes) -> None:
        """Whole events, as the client got them."""
        self._raw.append(events)
        self._size += len(events)
        if self._size > _RAW_BYTES:
            self._boil_down()

    def _boil_down(self) -> None:
        pieces = [self._text]
        for choices in self._choices(event for data in self._raw for event in data.split(b"\n\n")):
            for each in choices:
                self._count(each)
            choice = choices[0]
            pieces.append(choice.piece)
            self._finished = self._finished or bool(choice.finish_reason)
            if self._kind is not AnswerKind.REASONING and not choice.plain:
                self._kind = choice.kind
            self._tool_call_id = self._tool_call_id or choice.tool_call_id
        self._text = "".join(pieces)
        self._raw, self._size = [], 0

    def _choices(self, events: Iterable[bytes]) -> Iterator[list[Choice]]:
        for event in events:
            try:
                choices = self._read(event)
            except msgspec.DecodeError:
                continue
            if choices:
                yield choices

    def _count(self, choice: Choice) -> None:
        known = choice.exact_tokens
        if known is not None:
            self._tokens += known
        elif not choice.empty:
            self._tokens += 1
            self._exact = False

    @property
    def text(self) -> str:
        self._boil_down()
        return self._text

    @property
    def tokens(self) -> int:
        """A lower bound where chunks do not say how many tokens they hold: each then counts as one."""
        self._boil_down()
        return self._tokens

    @property
    def exact(self) -> bool:
        """Whether `tokens` is more than a lower bound."""
        self._boil_down()
        return self._exact

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
        return self._kind is AnswerKind.PLAIN

    def kind(self) -> AnswerKind:
        """What it consisted of; events are read only where they seem to hold more than text."""
        if any(name in data for data in self._raw for name in _NOT_PLAIN):
            self._boil_down()
        return kind_of(self._text, self._kind)

    def mark(self) -> AnswerMark:
        """The answer's mark, reading no more events than that needs."""
        if not self._tool_call_id and any(name in data for data in self._raw for name in _TOOL_CALLS):
            self._boil_down()
        return mark_of_pieces(self._pieces(), self._pieces_backward(), self._tool_call_id)

    def _pieces(self) -> Iterator[str]:
        yield self._text
        for data in self._raw:
            for choices in self._choices(data.split(b"\n\n")):
                yield choices[0].piece

    def _pieces_backward(self) -> Iterator[str]:
        for data in reversed(self._raw):
            for choices in self._choices(reversed(data.split(b"\n\n"))):
                yield choices[0].piece
        yield self._text
