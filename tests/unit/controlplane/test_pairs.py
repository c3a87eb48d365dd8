"""Which engines are paired, and what a prefill engine is told when its part is not wanted any more."""

import asyncio
import contextlib

import pytest
from msgspec.structs import replace

from controlplane.app import Frontend
from tests.unit.controlplane.conftest import P_D, TWO_P_D, record, running
from tests.unit.controlplane.fakes import Fault

pytestmark = pytest.mark.unit


def _register(frontend: Frontend, engines: dict, incarnation: int, sizes: dict[str, int]) -> None:
    """The engines of TWO_P_D, with KV blocks of these sizes."""
    records = [
        replace(
            record(engines[name], role, name),
            worker_id=f"{name}-{incarnation}",
            block_size_tokens=sizes[name],
        )
        for name, role in TWO_P_D.items()
    ]
    frontend.fleet.update({each.worker_id: each for each in records})


async def test_engines_that_cannot_exchange_kv_are_never_paired() -> None:
    async with running(TWO_P_D) as stack:
        _register(stack.frontend, stack.engines, 2, {"p0": 16, "p1": 32, "d0": 32})
        for number in range(8):
            assert (await stack.ask(f"chat {number}"))[0] == "p-d"
        assert stack.engines["p0"].requests == []
        stack.engines["p1"].faults.append(Fault("status"))
        assert (await stack.ask("another"))[:2] == ("d-local", "prefill-failed")  # rather than p0
        _register(stack.frontend, stack.engines, 3, {"p0": 16, "p1": 16, "d0": 32})
        assert (await stack.ask("and another"))[:2] == ("d-local", "no-prefill")
        assert stack.engines["p0"].requests == []


@pytest.mark.parametrize("releases", [True, False])
async def test_a_prefill_engine_is_told_of_a_client_that_hung_up(releases: bool) -> None:
    async with running(P_D) as stack:
        p0 = stack.engines["p0"]
        stack.frontend.fleet.update(
            {f"{n}-1": record(stack.engines[n], role, n, releases=releases) for n, role in P_D.items()}
        )
        p0.faults.append(Fault("stall"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await stack.ask("hi")
        for _ in range(100):
            if len(p0.requests) == 2 or (not releases and p0.requests[0].aborted):
                break
            await asyncio.sleep(0.05)
        prefill, *words = p0.requests
        assert prefill.aborted
        turn = prefill.body["kv_transfer_params"]["ppd_request_id"]
        released = [word.body["kv_transfer_params"] for word in words]
        assert released == ([{"do_remote_prefill": True, "ppd_release": turn}] if releases else [])


async def test_a_prefill_that_was_used_is_not_released() -> None:
    async with running(P_D) as stack:
        stack.frontend.fleet.update(
            {f"{n}-1": record(stack.engines[n], role, n, releases=True) for n, role in P_D.items()}
        )
        assert (await stack.ask("hi"))[0] == "p-d"
        await asyncio.sleep(0.2)
        assert len(stack.engines["p0"].requests) == 1
