"""What an operator asks."""

import asyncio
from typing import Any

import pytest

from tests.unit.controlplane.conftest import P_D, Stack, running

pytestmark = pytest.mark.unit

KEY = {"x-ppd-admin-key": "operator"}
QUESTIONS = ["state", "workers", "sessions", "decisions", "turns", "planner", "table", "table/history"]


async def get(stack: Stack, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    async with stack.http.get(f"{stack.url}/admin/{path}", headers=KEY | (headers or {})) as response:
        return response.status, await response.json()


async def test_nothing_is_told_or_done_without_the_key() -> None:
    async with running(P_D) as off, running(P_D, admin_key="operator") as on:
        for stack, headers in ((off, {}), (off, KEY), (on, {}), (on, {"x-ppd-admin-key": "operator2"})):
            for path in QUESTIONS:
                async with stack.http.get(f"{stack.url}/admin/{path}", headers=headers) as response:
                    assert response.status == 403, path
            for path in ("rollback?version=1", "freeze", "unfreeze"):
                async with stack.http.post(f"{stack.url}/admin/table/{path}", headers=headers) as response:
                    assert response.status == 403


async def test_state_and_workers_show_what_runs() -> None:
    async with running(P_D, admin_key="operator") as stack:
        stack.engines["d0"].chunk_gap_s = 30
        response = await stack.chat("hi", stream=True)
        await response.content.readany()
        status, state = await get(stack, "state")
        assert status == 200
        assert (state["running"], state["queued"], state["nats"]) == (1, 0, False)
        assert {each["name"]: each["running"] for each in state["workers"]} == {"p0": 0, "d0": 1}
        assert "url" not in state["workers"][0]
        response.close()
        async with asyncio.timeout(20):
            while (await get(stack, "state"))[1]["running"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_decisions_can_be_narrowed_down() -> None:
    async with running(P_D, admin_key="operator") as stack:
        await stack.ask("hi")
        await stack.ask("other")
        text = (await stack.ask("hi"))[2]["choices"][0]["message"]["content"]
        await stack.ask("hi", text, "more")
        _, newest = await get(stack, "decisions?limit=1")
        assert (len(newest), newest[0]["turn"]) == (1, 2)
        session = newest[0]["session_id"]
        for question, count in (
            ("decisions", 4),
            ("decisions?path=d-local", 1),
            ("decisions?reason=first-turn", 3),
            (f"decisions?session={session}", 2),
            ("decisions?model=nope", 0),
        ):
            status, found = await get(stack, question)
            assert (status, len(found)) == (200, count), question
        for bad in ("decisions?path=x", "decisions?limit=0", "decisions?limit=x", "table/diff?old=1"):
            status, answer = await get(stack, bad)
            assert status == 400
            assert answer["error"]["param"]


async def test_without_a_planner_its_answers_are_503() -> None:
    async with running(P_D, admin_key="operator") as stack:
        for path in ("planner", "table", "table/history", "table/diff?old=1&new=2"):
            status, answer = await get(stack, path)
            assert status == 503
            assert answer["error"]["type"] == "service_unavailable_error"
