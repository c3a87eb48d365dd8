"""What an operator can ask of the planner over NATS."""

from collections.abc import Callable
from typing import Any

import pytest

from ppd.core.names import Role, Route
from ppd.runtime.bus import Bus
from ppd.runtime.etcd import Etcd
from tests.support.planners import MODEL, PlannerProcess, add_worker, ask, eventually, record_turns, turn

pytestmark = pytest.mark.contract


@pytest.fixture
async def leader(
    start_planner: Callable[..., PlannerProcess], etcd: Etcd, bus: Bus, namespace: str
) -> PlannerProcess:
    """A planner that has published the table of 1P1D; it publishes what it learned at once."""
    await add_worker(etcd, namespace, "p0", Role.PREFILL)
    await add_worker(etcd, namespace, "d0", Role.DECODE)
    planner = start_planner("--publish-s", "0.2", "--checkpoint-s", "0.2")

    async def published() -> bool:
        return bool((await ask(bus, namespace, "status"))["tables"])

    await eventually("a table", published)
    return planner


async def test_weights_freeze_rollback_and_diff(leader: PlannerProcess, bus: Bus, namespace: str) -> None:
    heavy = {"slo_class": "balanced", "ttft": 1.0, "tpot": 50.0}
    assert (await ask(bus, namespace, "weights.set", heavy))["version"] == 2
    table = await ask(bus, namespace, "table.get")
    assert table["weights"] == {"balanced": [1.0, 50.0]}
    differs = await ask(bus, namespace, "table.diff", {"from": 1, "to": 2})
    assert differs["verdicts"]
    assert {each["slo_class"] for each in differs["verdicts"]} == {"balanced"}
    assert {(each["from"], each["to"]) for each in differs["verdicts"]} == {("d-local", "p-d")}
    assert differs["figures"] == []

    frozen = await ask(bus, namespace, "freeze")
    assert (frozen["version"], frozen["frozen"]) == (3, True)
    back = await ask(bus, namespace, "rollback", {"version": 1})
    assert (back["version"], back["source"], back["frozen"]) == (4, "rollback of 1", True)
    assert (await ask(bus, namespace, "table.get"))["weights"] == {}
    assert (await ask(bus, namespace, "unfreeze"))["frozen"] is False
    history = await ask(bus, namespace, "table.history")
    assert [each["version"] for each in history] == [1, 2, 3, 4, 5]


async def test_a_class_is_given_limits_and_rid_of_them(
    leader: PlannerProcess, bus: Bus, namespace: str
) -> None:
    def asking(**limits: float) -> dict[str, Any]:
        return {"slo_class": "batch", "ttft": 1.0, "tpot": 4.0} | limits

    given = await ask(bus, namespace, "weights.set", asking(ttft_limit_ms=500, tpot_limit_ms=40))
    assert given["source"] == "weights of batch set to 1, 4, limits to 500 and 40 ms"
    assert (await ask(bus, namespace, "table.get"))["limits"] == {"batch": [500.0, 40.0]}
    await ask(bus, namespace, "weights.set", asking(ttft_limit_ms=0))
    await ask(bus, namespace, "weights.set", asking())
    assert (await ask(bus, namespace, "table.get"))["limits"] == {"batch": [0.0, 40.0]}
    refused = await ask(bus, namespace, "weights.set", asking(tpot_limit_ms=-1))
    assert refused["code"] == "400"


async def test_wrong_requests_are_the_callers_fault(leader: PlannerProcess, bus: Bus, namespace: str) -> None:
    wrong = {
        ("weights.set", "400"): {"slo_class": "x", "ttft": -1, "tpot": 1},
        ("rollback", "404"): {"version": 77},
        ("freeze", "404"): {"model": "no/such"},
        ("explain", "400"): {"slo_class": "no-such"},
        ("rebuild", "400"): {"table": {"model": MODEL, "placement": "1P1D", "version": 1, "cells": []}},
        ("table.diff", "400"): {"from": "one"},
    }
    for (verb, code), request in wrong.items():
        answer = await ask(bus, namespace, verb, request)
        assert answer.get("code") == code, (verb, answer)
        assert answer["error"]
    assert (await ask(bus, namespace, "table.get"))["version"] == 1


async def test_explain_says_the_decision_and_what_it_rests_on(
    leader: PlannerProcess, bus: Bus, namespace: str
) -> None:
    asked = {"n_in": 128, "n_out": 128, "n_ctx": 2048, "qps": 4}
    answer = await ask(bus, namespace, "explain", asked)
    assert answer["cell"] == "large/mid_bal@4"
    assert answer["path"] == "d-local"
    assert set(answer["expected"]) >= {"p-d", "d-local"}
    assert answer["learned"]["survival"] == 1.0
    first = await ask(bus, namespace, "explain", asked | {"turn": 1})
    assert (first["path"], first["reason"]) == ("p-d", "first-turn")


async def test_a_verdict_that_turns_prove_wrong_is_changed_and_rebuild_forgets_it(
    leader: PlannerProcess, bus: Bus, namespace: str
) -> None:
    cell = "large/mid_bal@1"
    dear = [
        turn(n, cell=cell, path=Route.D_LOCAL, ttft_ms=900.0 + n % 7, tpot_ms=40.0 + n % 3) for n in range(80)
    ]
    cheap = [
        turn(n, cell=cell, path=Route.P_D, explored=True, ttft_ms=100.0 + n % 7, tpot_ms=8.0)
        for n in range(40)
    ]
    await record_turns(bus, namespace, [each for pair in zip(dear, cheap * 2, strict=True) for each in pair])

    async def changed() -> object:
        answer = await ask(bus, namespace, "explain", {"n_in": 128, "n_out": 128, "n_ctx": 2048, "qps": 1})
        return answer if answer["path"] == "p-d" else None

    answer = await eventually("P->D in that cell", changed)
    assert answer["table_source"].startswith("online: ")
    assert answer["measured"]["d-local"]["provenance"] == "online"
    rebuilt = await ask(bus, namespace, "rebuild")
    assert rebuilt["source"].startswith("seed")
    assert rebuilt["learns_from_sequence"] == 161

    async def all_counted() -> Any:
        status = await ask(bus, namespace, "status")
        return status if status["turns"] == 160 else None

    # Turns that were on their way while the table was rebuilt count, and teach nothing.
    status = await eventually("all turns counted", all_counted)
    assert status["tables"][0]["learned"]["samples"] == 0
    again = await ask(bus, namespace, "explain", {"n_in": 128, "n_out": 128, "n_ctx": 2048, "qps": 1})
    assert again["path"] == "d-local"


async def test_explain_goes_by_the_policy_of_the_newest_turn(
    leader: PlannerProcess, bus: Bus, namespace: str
) -> None:
    answer = await ask(bus, namespace, "explain", {})
    assert (answer["policy"], answer["policy_known_from"]) == ("adaptive", "default")
    await record_turns(bus, namespace, [turn(1, policy="static:x=0")])

    async def known() -> Any:
        answer = await ask(bus, namespace, "explain", {})
        return answer if answer["policy_known_from"] == "turns" else None

    answer = await eventually("the turn's policy", known)
    assert (answer["policy"], answer["path"]) == ("static:x=0", "p-d")
    asked = await ask(bus, namespace, "explain", {"policy": "static:x=1"})
    assert (asked["policy_known_from"], asked["path"]) == ("request", "d-local")


async def test_a_worker_that_dies_and_returns_makes_no_new_tables(
    start_planner: Callable[..., PlannerProcess], etcd: Etcd, bus: Bus, namespace: str
) -> None:
    for name, role in (("p0", Role.PREFILL), ("p1", Role.PREFILL), ("d0", Role.DECODE), ("d1", Role.DECODE)):
        await add_worker(etcd, namespace, name, role)
    start_planner("--settle-s", "2")

    async def tables() -> list[str]:
        status = await ask(bus, namespace, "status")
        return [table["placement"] for table in status["tables"]]

    assert await eventually("a table", tables) == ["2P2D"]
    await etcd.delete(f"/ppd/{namespace}/workers/p1")

    async def placement() -> str:
        return str((await ask(bus, namespace, "status"))["placements"].get(MODEL))

    async def is_1p2d() -> bool:
        return await placement() == "1P2D"

    await eventually("it has seen the death", is_1p2d)
    assert await tables() == ["2P2D"]
    await add_worker(etcd, namespace, "p1", Role.PREFILL)

    async def is_2p2d() -> bool:
        return await placement() == "2P2D"

    await eventually("it has seen the return", is_2p2d)
    await etcd.delete(f"/ppd/{namespace}/workers/p1")

    async def two() -> bool:
        return sorted(await tables()) == ["1P2D", "2P2D"]

    await eventually("a death that lasts gets its own table", two)
