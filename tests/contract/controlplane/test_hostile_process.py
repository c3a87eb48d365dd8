"""The whole count of odd requests against a frontend in a process of its own: it lives, and does not grow."""

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from tests.contract.controlplane.conftest import Cluster
from tests.contract.controlplane.processes import processes
from tests.support.hostile import Assault

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(1800)]

REQUESTS, CONNECTIONS, ROUNDS = 4000, 600, 4


async def test_eighteen_thousand_odd_requests_leave_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    flags = ("--body-s", "2", "--head-s", "5", "--max-sessions", "1000")
    async with processes(cluster, tmp_path, 1, *flags) as frontend:
        _, document = await frontend.get("/openapi.json")
        cluster.engines["d0"].cached = 10**9  # as a D says that pulled what P computed
        process = psutil.Process(frontend.process.pid)
        sizes, statuses = [], {}
        for number in range(ROUNDS):
            assault = Assault(frontend.url, number, json.loads(document))
            await assault.run(REQUESTS, CONNECTIONS)
            assert not assault.faults, "\n".join(assault.faults[:5])
            statuses[number] = dict(assault.statuses)
            assert assault.statuses.total() > 0.9 * REQUESTS, statuses
            sizes.append(process.memory_info().rss)
            for engine in cluster.engines.values():
                engine.requests.clear()
        print([size >> 20 for size in sizes], statuses)
        # What a round leaves behind would be left by each.
        assert sizes[-1] < 1.1 * sizes[1], [size >> 20 for size in sizes]
        assert (await frontend.chat("hi"))[0] == "d0"
        async with asyncio.timeout(20):
            while "\nppd_running 0.0\n" not in (await frontend.get("/metrics"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert process.num_fds() < 100
        log = (tmp_path / "log").read_text()
        assert "Traceback" not in log
        assert len(log) < 1 << 20
