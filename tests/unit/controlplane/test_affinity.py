"""What binds requests to engines: their history and nothing else; what only draws them there."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from controlplane.dialects.body_prefix import Prefixes
from controlplane.dialects.openai import Chat
from ppd.core.affinity import MAX_IN_A_ROW
from ppd.core.names import Role
from tests.support.api_keys import made
from tests.unit.controlplane.conftest import Stack, running

pytestmark = pytest.mark.unit

TEXT = "Paris it is."
ENGINES = {"p0": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE, "d2": Role.DECODE}
CHATS = 40
WAYS: list[dict[str, Any]] = [
    {"prompt_cache_key": "app"},
    {"user": "app"},
    {"conversation": "app"},
    {"conversation": {"id": "app"}},
    {"headers": {"x-session-id": "app"}},
    {"prompt_cache_key": "app", "user": "app", "headers": {"x-session-id": "app"}},
]


async def decode_of(stack: Stack, *messages: str, **fields: Any) -> str:
    async with await stack.chat(*messages, **fields) as response:
        await response.read()
        assert response.status == 200
        return response.headers["x-ppd-decode"]


@pytest.mark.parametrize("at_once", [False, True], ids=["one-by-one", "at-once"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: "+".join(way))
async def test_chats_that_share_a_name_spread_over_the_decode_engines(
    way: dict[str, Any], at_once: bool
) -> None:
    async with running(ENGINES) as stack:
        if at_once:
            for engine in stack.engines.values():
                engine.chunk_gap_s = 0.02
            found = await asyncio.gather(
                *(decode_of(stack, f"question {i}", stream=True, **way) for i in range(CHATS))
            )
        else:
            found = [await decode_of(stack, f"question {i}", **way) for i in range(CHATS)]
        counts = Counter(found)
        assert len(counts) == 3
        assert max(counts.values()) - min(counts.values()) <= 2 * MAX_IN_A_ROW
        for i in range(0, CHATS, 7):  # and each chat stays where it is
            assert await decode_of(stack, f"question {i}", TEXT, "more", **way) == found[i]


@pytest.mark.parametrize("way", WAYS[:1] + WAYS[2:], ids=lambda way: "+".join(way))
async def test_a_few_that_begin_alike_meet(way: dict[str, Any]) -> None:
    async with running(ENGINES) as stack:
        found = {await decode_of(stack, f"question {i}", **way) for i in range(MAX_IN_A_ROW)}
        assert len(found) == 1


async def test_a_cache_key_is_no_part_of_a_conversation() -> None:
    """Nor is the user: a client may change either in the middle of a chat."""
    async with running(ENGINES) as stack:
        home = await decode_of(stack, "hi", prompt_cache_key="a", user="u")
        session = stack.frontend.ledger.recent[-1].session_id
        async with await stack.chat("hi", TEXT, "more", prompt_cache_key="b", user="v") as response:
            assert (response.headers["x-ppd-decode"], response.headers["x-ppd-route"]) == (home, "d-local")
        assert stack.frontend.ledger.recent[-1].session_id == session


async def test_names_mean_nothing_under_another_api_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    alice, bob = made(keys, "alice"), made(keys, "bob")
    async with running(ENGINES, keys=keys) as stack:
        sessions = []
        for key in (alice, bob, alice):
            headers = key | {"x-session-id": "1"}
            await decode_of(stack, "hi", headers=headers)
            sessions.append(stack.frontend.ledger.recent[-1].session_id)
            assert len(stack.frontend.sessions) == len(set(sessions))
        headers = bob | {"x-session-id": "1"}
        async with await stack.chat("hi", TEXT, "more", headers=headers) as response:
            assert response.headers["x-ppd-route"] == "d-local"
        assert stack.frontend.ledger.recent[-1].session_id == sessions[1] != sessions[0]


def test_the_id_holds_the_keys_name_only_as_a_hash() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"prompt_cache_key":"k"}'
    headers = {b"x-session-id": b"1"}
    mine, none = (Chat().parse(body, headers, Prefixes(), caller) for caller in ("secret-name", ""))
    assert (none.explicit_id, none.cache_key) == ("1", "k")
    for name in (mine.explicit_id, mine.cache_key):
        assert "secret-name" not in name
        assert name not in ("1", "k")
    assert mine.keys[0] != none.keys[0]
