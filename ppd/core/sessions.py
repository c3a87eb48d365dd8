"""Conversations in memory: bounded in number and age, found by keys of their history. Time is passed in."""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from ppd.core.identity import Candidate
from ppd.core.names import Route
from ppd.core.retention import AnswerKind

MARKS_KEPT = 4  # boundaries by which a session can be found: this bounds its memory


class Mark(NamedTuple):
    """One finished turn of a session: the keys around its answer, and the tokens up to them."""

    boundary: int
    after: int | None  # None where the answer's ends are not known
    turn: int
    prompt_tokens: int
    total_tokens: int  # with the answer
    kind: AnswerKind = AnswerKind.PLAIN  # of the answer


class Pullback(NamedTuple):
    """D's parameters for a pull-back: single use, for exactly the history that ends in `after`."""

    params: dict[str, Any]
    after: int
    decode_worker: str
    expires_s: float


class Session:
    """One conversation, or one branch of it."""

    __slots__ = (
        "_serial",
        "decode_worker",
        "explicit_id",
        "id",
        "last_path",
        "last_s",
        "local_streak",
        "marks",
        "n_out_mean_tokens",
        "p_known_tokens",
        "prefill_worker",
        "pullback",
        "shared",
        "trace",
    )

    def __init__(self, session_id: str, explicit_id: str = "") -> None:
        self.id = session_id
        self.explicit_id = explicit_id
        self.marks: tuple[Mark, ...] = ()
        self.decode_worker = ""
        self.prefill_worker = ""
        self.p_known_tokens = 0  # of this conversation, what its P computed last
        self.local_streak = 0
        self.n_out_mean_tokens = 0.0
        self.last_path = Route.P_D
        self.last_s = 0.0
        self.pullback: Pullback | None = None
        self.shared = 0  # the key under which other frontends find it; 0 = none. A branch has its own
        self.trace = ""  # the `traceparent` of its last turn, where that was traced
        self._serial = 0

    @property
    def turn(self) -> int:
        return self.marks[-1].turn if self.marks else 0

    def fork(self, session_id: str, at: Mark | None) -> "Session":
        """A branch that shares this session's history up to `at`."""
        other = Session(session_id, self.explicit_id)
        other.marks = self.marks[: self.marks.index(at) + 1] if at in self.marks else ()
        for name in (
            "decode_worker",
            "prefill_worker",
            "local_streak",
            "n_out_mean_tokens",
            "last_path",
            "trace",
        ):
            setattr(other, name, getattr(self, name))
        other.p_known_tokens = min(self.p_known_tokens, at.total_tokens) if at else 0
        return other


class Match(NamedTuple):
    """Where a request meets a known session. `exact`: the answer, too, is the one that was given."""

    session: Session
    mark: Mark
    exact: bool
    messages: int  # how many of the request's messages the mark covers, without the answer

    @property
    def answer_tokens(self) -> int:
        """Of the last answer, if the request has it as it was given."""
        return self.mark.total_tokens - self.mark.prompt_tokens if self.exact else 0

    def held_tokens(self, found: float = 1.0) -> int:
        """Of the request's prompt, what the session's workers may still hold. `found`: the share of the last
        answer's tokens that the prompt has again."""
        return self.mark.prompt_tokens + round(found * self.answer_tokens)


class SessionStore:
    """Sessions by key, least recently used first out."""

    def __init__(self, max_sessions: int, ttl_s: float) -> None:
        self._max = max_sessions
        self._ttl_s = ttl_s
        self._by_serial: OrderedDict[int, Session] = OrderedDict()  # in order of use
        self._by_key: dict[int, Session] = {}
        self._by_explicit: dict[str, Session] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._by_serial)

    def match(self, candidates: Iterable[Candidate], now_s: float) -> Match | None:
        """The longest known history; among sessions that share a key, the most recent one."""
        self.expire(now_s)
        for after, boundary, messages in candidates:
            if after is not None and (session := self._by_key.get(after)):
                for mark in reversed(session.marks):
                    if mark.after == after:
                        return Match(session, mark, True, messages)
            if session := self._by_key.get(boundary):
                for mark in reversed(session.marks):
                    if mark.boundary == boundary:
                        return Match(session, mark, False, messages)
        return None

    def by_explicit_id(self, key: str, now_s: float) -> Session | None:
        """The newest session under a client's id (with its model): an exact match only."""
        self.expire(now_s)
        return self._by_explicit.get(key)

    def keep(self, session: Session, now_s: float) -> None:
        """Insert or touch a session; the least recently used one makes room."""
        if not self._by_serial.pop(session._serial, None):
            self._next += 1
            session._serial = self._next
        session.last_s = now_s
        self._by_serial[session._serial] = session
        if session.explicit_id:
            self._by_explicit[session.explicit_id] = session
        for mark in session.marks:
            self._by_key.setdefault(mark.boundary, session)
            if mark.after is not None:
                self._by_key.setdefault(mark.after, session)
        while len(self._by_serial) > self._max:
            self._drop(next(iter(self._by_serial.values())))

    def add_mark(self, session: Session, mark: Mark, now_s: float) -> None:
        """A finished turn: the newest session owns its keys, and the oldest mark gives way."""
        dropped = session.marks[: max(0, len(session.marks) + 1 - MARKS_KEPT)]
        session.marks = (*session.marks[len(dropped) :], mark)
        for old in dropped:
            self._forget(old, session)
        self._by_key[mark.boundary] = session
        if mark.after is not None:
            self._by_key[mark.after] = session
        self.keep(session, now_s)

    def expire(self, now_s: float) -> None:
        """Drop what was not used for the TTL."""
        while self._by_serial:
            oldest = next(iter(self._by_serial.values()))
            if now_s - oldest.last_s <= self._ttl_s:
                return
            self._drop(oldest)

    def newest(self, limit: int) -> list[Session]:
        """The sessions used last, the newest first."""
        return list(islice(reversed(self._by_serial.values()), limit))

    def _forget(self, mark: Mark, session: Session) -> None:
        for key in (mark.boundary, mark.after):
            if key is not None and self._by_key.get(key) is session:
                del self._by_key[key]

    def _drop(self, session: Session) -> None:
        self._by_serial.pop(session._serial, None)
        if self._by_explicit.get(session.explicit_id) is session:
            del self._by_explicit[session.explicit_id]
        for mark in session.marks:
            self._forget(mark, session)
