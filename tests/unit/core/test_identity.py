import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core import identity
from ppd.core.identity import Message

pytestmark = pytest.mark.unit


def chat(*texts: str) -> list[Message]:
    return [Message("assistant" if i % 2 else "user", text) for i, text in enumerate(texts)]


def keys(messages: list[Message], **scope: str) -> list[int]:
    return identity.history_keys(messages, identity.seed("m", explicit_id=scope.get("id", "")))


def test_a_longer_history_keeps_the_keys_of_its_beginning() -> None:
    short, long = keys(chat("a", "b", "c")), keys(chat("a", "b", "c", "d", "e"))
    assert long[: len(short)] == short
    assert len(set(long)) == len(long)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Message("user", "x"), Message("system", "x")),
        (Message("user", "x"), Message("user", "y")),
        (Message("user", "x"), Message("user", "x", name="n")),
        (Message("tool", "x", tool_call_id="1"), Message("tool", "x", tool_call_id="2")),
        (Message("assistant", None, tool_calls=[{"id": "1"}]), Message("assistant", None)),
        (Message("user", [{"type": "text", "text": "x"}]), Message("user", "x")),
        (Message("user", "a\nb"), Message("user\na", "b")),
    ],
)
def test_unlike_messages_have_unlike_keys(one: Message, other: Message) -> None:
    assert keys([one])[-1] != keys([other])[-1]


def test_key_order_inside_parts_does_not_matter() -> None:
    one = Message("user", [{"type": "text", "text": "x"}])
    other = Message("user", [{"text": "x", "type": "text"}])
    assert keys([one]) == keys([other])


def test_model_tools_and_id_keep_histories_apart() -> None:
    seeds = {
        identity.seed("m"),
        identity.seed("m2"),
        identity.seed("m", b"[]"),
        identity.seed("m", explicit_id="a"),
        identity.seed("ma"),
    }
    assert len(seeds) == 5


def test_a_first_turn_meets_nothing() -> None:
    messages = [Message("system", "s"), Message("user", "hello")]
    assert list(identity.candidates(messages, keys(messages))) == []


def test_candidates_come_longest_first() -> None:
    messages = chat("a", "b", "c", "d", "e")
    found = list(identity.candidates(messages, keys(messages)))
    assert [each.messages for each in found] == [5, 3, 1]
    assert found[0].after is None


@given(st.text(max_size=80), st.text(alphabet=" \n\t", max_size=3), st.text(alphabet=" \n\t", max_size=3))
def test_white_space_around_an_answer_does_not_count(text: str, before: str, behind: str) -> None:
    assert identity.mark_of(before + text + behind) == identity.mark_of(text)


def test_twins_are_told_apart_by_either_end_and_by_tool_call() -> None:
    middle = "m" * 100
    marks = {
        identity.mark_of("A" + middle),
        identity.mark_of("B" + middle),
        identity.mark_of("A" + middle + "z"),
        identity.mark_of("A" + middle, "call-1"),
    }
    assert len({identity.after_key(7, mark) for mark in marks}) == 4


def test_the_answer_given_is_the_answer_sent_back_in_parts() -> None:
    given = identity.after_key(keys(chat("a"))[-1], identity.mark_of("the answer"))
    back = [*chat("a"), Message("assistant", [{"type": "text", "text": "the answer "}]), Message("user", "b")]
    found = [each.after for each in identity.candidates(back, keys(back))]
    assert given in found
