"""Conversations as clients really send them: shared beginnings, branches, the same turn twice at once."""

import asyncio

import pytest

from ppd.core import identity
from ppd.core.identity import Message, mark_of
from ppd.core.names import Role
from ppd.core.sessions import Mark, Session, SessionStore
from tests.support.answers import TEXT
from tests.unit.controlplane.conftest import TWO_P_D, running

pytestmark = pytest.mark.unit

ENGINES = {"p0": Role.PREFILL, **{f"d{i}": Role.DECODE for i in range(3)}}


def test_thousands_of_chats_under_one_system_prompt_stay_apart() -> None:
    store = SessionStore(10_000, 3600)
    system = Message("system", "You are a helpful assistant. " * 200)
    chats = 3000
    start = identity.seed("m")
    for chat in range(chats):
        keys = identity.history_keys([system, Message("user", f"question {chat}")], start)
        after = identity.after_key(keys[-1], mark_of("Sure! Here is what I think."))
        store.add_mark(Session(str(chat)), Mark(keys[-1], after, 1, 10, 20), 0.0)
    for chat in range(chats):
        history = [
            system,
            Message("user", f"question {chat}"),
            Message("assistant", "Sure! Here is what I think."),
            Message("user", "go on"),
        ]
        match = store.match(identity.candidates(history, identity.history_keys(history, start)), 1.0)
        assert match is not None
        assert (match.session.id, match.exact) == (str(chat), True)


async def test_what_one_p_computed_is_not_counted_for_another() -> None:
    """Where placement takes another P than the session's, that one lacks the whole history."""
    async with running(TWO_P_D) as stack:
        recent = stack.frontend.ledger.recent
        await stack.ask("hi")
        own = recent[-1].prefill_worker
        await stack.ask("hi", TEXT, "more")
        lacks = recent[-1].p_missing_tokens
        busy = stack.frontend.cluster.workers[f"{own}-1"]
        busy.prefill_tokens += 1_000_000
        await stack.ask("hi", TEXT, "more", TEXT, "and")
        assert lacks < recent[-1].n_ctx_tokens == recent[-1].p_missing_tokens


async def test_the_same_turn_twice_at_once_goes_to_the_same_d() -> None:
    async with running(ENGINES) as stack:
        await stack.ask("hi")
        home = stack.frontend.ledger.recent[-1].decode_worker
        stack.engines[home].chunk_gap_s = 0.01
        twice = await asyncio.gather(*(stack.chat("hi", TEXT, "more", stream=True) for _ in range(4)))
        assert {response.headers["x-ppd-decode"] for response in twice} == {home}
        assert {response.headers["x-ppd-route"] for response in twice} == {"d-local"}
        for response in twice:
            await response.read()
        async with await stack.chat("hi", TEXT, "more", TEXT, "and") as response:
            assert response.headers["x-ppd-decode"] == home
            assert response.headers["x-ppd-route"] == "d-local"
            await response.read()
        assert stack.frontend.ledger.recent[-1].turn == 3


async def test_branches_share_their_beginning_and_go_on_apart() -> None:
    async with running(ENGINES) as stack:
        await stack.ask("hi")
        home = stack.frontend.ledger.recent[-1].decode_worker
        sessions = []
        for branch in ("left", "right"):
            assert (await stack.ask("hi", TEXT, branch))[0] == "d-local"
            sessions.append(stack.frontend.ledger.recent[-1].session_id)
        for branch, session in zip(("left", "right"), sessions, strict=True):
            assert (await stack.ask("hi", TEXT, branch, TEXT, "on"))[0] == "d-local"
            record = stack.frontend.ledger.recent[-1]
            assert (record.session_id, record.decode_worker, record.turn) == (session, home, 3)
        assert len(set(sessions)) == 2


async def test_a_prefix_of_an_explicit_id_is_another_conversation() -> None:
    async with running(ENGINES) as stack:
        homes = {}
        for name in ("abc", "abcd", "ab"):
            async with await stack.chat("hi", headers={"x-session-id": name}) as response:
                homes[name] = response.headers["x-ppd-decode"]
                await response.read()
        assert len(set(homes.values())) == 3, "equals share the load"
        for name, home in homes.items():
            async with await stack.chat("hi", TEXT, "on", headers={"x-session-id": name}) as response:
                assert response.headers["x-ppd-decode"] == home
