"""What the online loop lives on reaches it through the whole stack: turns, exploration, load reports."""

import asyncio
from typing import Any

import nats
import pytest

from ppd.core.names import load_subject
from ppd.core.records import CellRecord, WorkerLoad, decode
from tests.e2e.cell_traffic import Traffic
from tests.e2e.local_stack import LocalStack, eventually
from tests.e2e.measured import planner_status

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(300)]

_CELLS = [CellRecord(context="small", ratio=ratio, qps=4.0) for ratio in ("small_bal", "big_paste")]
_MODEL = "l40s-llama-3.1-8b"


def test_turns_exploration_and_what_a_local_prefill_costs_others_are_learned(sim_stack: LocalStack):
    sim_stack.environment["PPD_EXPLORE"] = "0.1"
    up = sim_stack.up("--engine", "sim", "--hardware", _MODEL)
    assert up.returncode == 0, up.stdout + up.stderr
    traffic = Traffic(sim_stack.url, _MODEL, ["interactive", "balanced"])
    asyncio.run(traffic.run(_CELLS, 12))

    sent = sum(routes.total() for routes in traffic.routes.values())
    assert sent == 96
    learned = eventually(lambda: _learned(sim_stack, of=sent))
    assert learned["samples"] >= sent * 9 // 10
    explored = traffic.reasons["explore"]
    assert 1 <= explored - _unfit(learned) <= learned["explored"] <= explored
    assert learned["cells_visited"] >= 2
    assert learned["pause_ms_per_token"]["d0"] > 0, "turn records and load reports name D alike"
    speeds = asyncio.run(_prefill_speeds(sim_stack))
    assert speeds["p0"] > 1000
    assert speeds["d0"] > 1000, "D's prefills are told, also beside prompts that it was handed"


def _learned(stack: LocalStack, of: int) -> dict[str, Any] | None:
    """What the planner knows, once it has taken in all later turns, those that teach nothing too."""
    found: dict[str, Any] = planner_status(stack)["tables"][0]["learned"]
    return found if found["samples"] + _unfit(found) >= of else None


def _unfit(learned: dict[str, Any]) -> int:
    """Later turns that teach no path's cost, such as those whose cache was gone."""
    return sum(count for why, count in learned["unfit"].items() if why != "first")


async def _prefill_speeds(stack: LocalStack) -> dict[str, float]:
    """Tokens a second, by worker name, of the next reports of both workers."""
    client = await nats.connect(stack.state()["nats"])
    try:
        reports = await client.subscribe(load_subject("default", "") + "*")
        found: dict[str, float] = {}
        while len(found) < 2:
            load = decode((await reports.next_msg(timeout=10)).data, WorkerLoad)
            found[load.worker_id.partition("-")[0]] = load.prefill_speed_tokens_per_s
        return found
    finally:
        await client.close()
