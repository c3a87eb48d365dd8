import tracemalloc

import pytest

from ppd.core import identity
from ppd.core.identity import Message
from ppd.core.sessions import MARKS_KEPT, Mark, Match, Session, SessionStore

pytestmark = pytest.mark.unit


class Chats:
    """Plays turns against a store."""

    def __init__(self, max_sessions: int = 100, ttl_s: float = 60) -> None:
        self.store = SessionStore(max_sessions, ttl_s)
        self.now_s = 1.0

    def keys(self, messages: list[Message]) -> list[int]:
        return identity.history_keys(messages, identity.seed("m"))

    def match(self, messages: list[Message]) -> Match | None:
        return self.store.match(identity.candidates(messages, self.keys(messages)), self.now_s)

    def play(self, session: Session, messages: list[Message], answer: str, turn: int = 1) -> list[Message]:
        boundary = self.keys(messages)[-1]
        after = identity.after_key(boundary, identity.mark_of(answer))
        self.store.add_mark(session, Mark(boundary, after, turn, 10 * turn, 10 * turn + 5), self.now_s)
        return [*messages, Message("assistant", answer)]


def user(text: str) -> Message:
    return Message("user", text)


def test_the_next_turn_finds_its_session_exactly() -> None:
    chats = Chats()
    session = Session("a")
    history = chats.play(session, [user("hi")], "hello there")
    match = chats.match([*history, user("more")])
    assert match is not None
    assert (match.session, match.exact, match.held_tokens(), match.messages) == (session, True, 15, 1)


def test_twins_with_one_first_message_do_not_share_a_session() -> None:
    chats = Chats()
    one, other = Session("one"), Session("other")
    first = chats.play(one, [user("hi")], "hello, I am one")
    second = chats.play(other, [user("hi")], "hello, I am another")
    assert chats.match([*first, user("x")]).session is one  # type: ignore[union-attr]
    assert chats.match([*second, user("x")]).session is other  # type: ignore[union-attr]


def test_a_rewritten_answer_matches_the_boundary_before_it() -> None:
    chats = Chats()
    chats.play(Session("a"), [user("hi")], "<think>hm</think>hello")
    match = chats.match([user("hi"), Message("assistant", "hello"), user("x")])
    assert match is not None
    assert not match.exact
    assert match.held_tokens() == 10


def test_an_edited_question_matches_what_lies_before_it() -> None:
    chats = Chats()
    session = Session("a")
    history = chats.play(session, [user("hi")], "hello")
    chats.play(session, [*history, user("second")], "fine", turn=2)
    match = chats.match([*history, user("second, edited")])
    assert match is not None
    assert match.mark.turn == 1
    assert match.held_tokens() == 15


def test_regenerating_a_later_answer_matches_the_whole_prompt() -> None:
    chats = Chats()
    session = Session("a")
    history = chats.play(session, [user("hi")], "hello")
    again = [*history, user("second")]
    chats.play(session, again, "fine", turn=2)
    match = chats.match(again)
    assert match is not None
    assert (match.exact, match.mark.turn, match.held_tokens()) == (False, 2, 20)


def test_a_first_message_alone_never_joins_a_session() -> None:
    chats = Chats()
    chats.play(Session("a"), [user("hi")], "hello")
    assert chats.match([user("hi")]) is None


def test_an_unrelated_chat_matches_nothing() -> None:
    chats = Chats()
    chats.play(Session("a"), [user("hi")], "hello")
    assert chats.match([user("hey"), Message("assistant", "hello"), user("x")]) is None


def test_forks_share_what_lies_before_the_fork() -> None:
    chats = Chats()
    session = Session("a")
    history = chats.play(session, [user("hi")], "hello")
    chats.play(session, [*history, user("second")], "fine", turn=2)
    fork = session.fork("b", session.marks[0])
    assert [mark.turn for mark in fork.marks] == [1]
    chats.play(fork, [*history, user("other")], "well", turn=2)
    match = chats.match([*history, user("second"), Message("assistant", "fine"), user("x")])
    assert match is not None
    assert match.session is session


def test_idle_sessions_expire_and_leave_no_key_behind() -> None:
    chats = Chats(ttl_s=10)
    history = chats.play(Session("a"), [user("hi")], "hello")
    chats.now_s += 11
    assert chats.match([*history, user("x")]) is None
    assert len(chats.store) == 0
    assert not chats.store._by_key


def test_the_least_recently_used_makes_room() -> None:
    chats = Chats(max_sessions=2)
    first = Session("1")
    one = chats.play(first, [user("1")], "a")
    two = chats.play(Session("2"), [user("2")], "b")
    chats.store.keep(first, chats.now_s)
    chats.play(Session("3"), [user("3")], "c")
    assert len(chats.store) == 2
    assert chats.match([*one, user("x")]) is not None
    assert chats.match([*two, user("x")]) is None


def test_marks_are_bounded() -> None:
    chats = Chats()
    session = Session("a")
    history = [user("hi")]
    for turn in range(1, 20):
        history = [*chats.play(session, history, f"answer {turn}", turn), user(f"q{turn}")]
    assert len(session.marks) == MARKS_KEPT
    assert len(chats.store._by_key) == 2 * MARKS_KEPT


def test_explicit_ids_match_exactly() -> None:
    store = SessionStore(10, 60)
    session = Session("a", "chat-1")
    store.keep(session, 0)
    assert store.by_explicit_id("chat-1", 1) is session
    assert store.by_explicit_id("chat-", 1) is None
    assert store.by_explicit_id("chat-11", 1) is None


def test_a_session_takes_at_most_two_kilobytes() -> None:
    n = 20_000
    store = SessionStore(n, 1e9)
    tracemalloc.start()
    key = 1 << 62
    for i in range(n):
        session = Session(f"{i:016x}", f"m\nexplicit-{i}")
        session.decode_worker = "d0-1"
        for turn in range(MARKS_KEPT):
            key += 2
            store.add_mark(session, Mark(key, key + 1, turn, 1000 + i, 2000 + i), float(i))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(store) == n
    assert used / n < 2048
