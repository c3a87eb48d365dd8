"""Adapters and second names that engines list: shown, routed, and gone when they are unloaded."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from ppd.core.cells import Cell, Context, Ratio
from ppd.core.records import encode
from tests.unit.controlplane.conftest import P_2D, Stack, running
from tests.unit.core import tables

pytestmark = pytest.mark.unit

NAMES = {"french": "m", "second": ""}


def serve(stack: Stack, **names: dict[str, str]) -> None:
    """Have the workers serve these further names."""
    records = {each.id: each.record for each in stack.frontend.cluster.workers.values()}
    for name, others in names.items():
        records[f"{name}-1"] = replace(records[f"{name}-1"], other_models=others)
    stack.frontend.fleet.update(records)


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """1P2D, of which d1 has no further names."""
    async with running(P_2D) as made:
        serve(made, p0=NAMES, d0=NAMES)
        yield made


async def listed(stack: Stack) -> dict[str, Any]:
    async with stack.http.get(stack.url + "/v1/models") as response:
        return {each["id"]: each["parent"] for each in (await response.json())["data"]}


async def test_they_are_listed_with_what_they_adapt(stack: Stack) -> None:
    assert await listed(stack) == {"m": None, "french": "m", "second": None}
    async with stack.http.get(stack.url + "/v1/models/french") as response:
        assert (await response.json())["parent"] == "m"


@pytest.mark.parametrize("name", NAMES)
async def test_a_turn_goes_to_engines_that_have_it(stack: Stack, name: str) -> None:
    for n in range(6):
        async with await stack.chat(f"question {n}", model=name) as response:
            assert response.status == 200
            assert response.headers["x-ppd-route"] == "p-d"
            assert response.headers["x-ppd-decode"] == "d0"
    for engine in (stack.engines["p0"], stack.engines["d0"]):
        assert {seen.body["model"] for seen in engine.requests} == {name}
    record = stack.frontend.ledger.recent[-1]
    assert (record.model, record.asked_model, record.placement) == ("m", name, "1P2D")


async def test_its_conversations_are_its_own(stack: Stack) -> None:
    text = "Paris it is."
    await stack.ask("hi", model="french")
    assert (await stack.ask("hi", text, "more", model="french"))[0] == "d-local"
    assert (await stack.ask("hi", text, "more"))[0] == "p-d"


async def test_its_table_is_that_of_the_model(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(Context.SMALL, Ratio.TINY, 1.0)
    measured = tables.record(cell, p_d=(90.0, 9.0), d_local=(30.0, 9.0))
    snapshot = replace(tables.snapshot(measured, version=3), placement="1P2D")
    stack.frontend.tables.update("m.1P2D", encode(snapshot))
    seen: list[int] = []
    decide = stack.frontend.router.policy.decide

    def spy(turn: Any, view: Any, table: Any, weights: Any) -> Any:
        seen.append(table.version if table else 0)
        return decide(turn, view, table, weights)

    monkeypatch.setattr(stack.frontend.router.policy, "decide", spy)
    await stack.ask("hi", model="french")
    await stack.ask("hi", "Paris it is.", "more", model="french")
    assert set(seen) == {3}


async def test_an_adapter_that_is_unloaded_is_404_at_once(stack: Stack) -> None:
    serve(stack, p0={"second": ""}, d0={"second": ""})
    assert await listed(stack) == {"m": None, "second": None}
    async with await stack.chat("hi", model="french") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"
    serve(stack, p0=NAMES, d0=NAMES, d1=NAMES)
    homes = set()
    for n in range(8):
        async with await stack.chat(f"question {n}", model="french") as response:
            homes.add(response.headers["x-ppd-decode"])
    assert homes == {"d0", "d1"}


async def test_one_that_only_d_has_is_served_there(stack: Stack) -> None:
    serve(stack, p0={})
    assert (await stack.ask("hi", model="french"))[:2] == ("d-local", "no-prefill")


async def test_health_and_metrics_know_the_model_alone(stack: Stack) -> None:
    async with stack.http.get(stack.url + "/health") as response:
        assert (await response.json())["models"].keys() == {"m"}
    async with stack.http.get(stack.url + "/metrics") as response:
        assert 'model="french"' not in await response.text()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/tokenize"])
async def test_every_endpoint_takes_the_name(stack: Stack, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "max_tokens": 2}
    async with stack.http.post(stack.url + path, json={"model": "french", **asked}) as response:
        assert response.status == 200
        assert response.headers["x-ppd-decode"] == "d0"
