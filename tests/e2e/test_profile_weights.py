"""A measured table that serves, and what TPOT's weight does to the route (the paper's Figure 6, in kind)."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise

import httpx
import psutil
import pytest

from ppd.core.names import Route
from ppd.core.records import CellRecord, TableSnapshot
from tests.e2e.cell_traffic import Traffic
from tests.e2e.local_stack import LocalStack, eventually
from tests.e2e.measured import KEPT, profile
from tests.support.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

_WEIGHTS = (0.0, 1.0, 4.0, 16.0, 1e4)  # of TPOT, against 1 for TTFT: under the last TPOT alone counts
_COSTS = 0.05  # of TPOT: less is noise
_CELLS = 3
_SWEEP_S = float(os.environ.get("PPD_TEST_SWEEP_S", "180"))


@pytest.fixture(scope="module")
def table(real_stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> TableSnapshot:
    found = profile(real_stack, KEPT or tmp_path_factory.mktemp("profile"), "--publish")
    for weight in _WEIGHTS:
        done = real_stack.ppd("table", "set-weights", _slo_class(weight), "1", f"{weight:g}")
        assert done.returncode == 0, done.stderr
    return found


# What may stay D-local when TPOT alone counts. By the table alone: turns that miss their cell. With the
# queues of now also those that meet an idle D, where a local prefill holds up nobody, whatever TPOT is worth.
@pytest.fixture(params=[("ppd", 0.2), ("adaptive", 0.5)], ids=lambda param: param[0])
def frontend(real_stack: LocalStack, request: pytest.FixtureRequest) -> Iterator[tuple[str, float]]:
    """One more frontend of the stack, with a policy of its own."""
    policy, left = request.param
    port = free_port()
    command = psutil.Process(real_stack.pids()["frontend"]).cmdline()
    command[command.index("--port") + 1] = str(port)
    started = subprocess.Popen([*command, "--policy", policy], env=real_stack.environment)
    url = f"http://127.0.0.1:{port}"
    yield url, left
    started.terminate()
    started.wait(30)


def test_the_share_of_d_local_turns_falls_as_the_weight_of_tpot_grows(
    real_stack: LocalStack, table: TableSnapshot, frontend: tuple[str, float]
):
    url, left = frontend
    cells = _dear(table)
    print("cells:", *(f"{c.context}/{c.ratio}@{c.qps:g} at {c.measured_qps:.2f}/s" for c in cells))
    assert cells, "D-local costs TPOT nowhere: there is nothing to weigh"
    eventually(lambda: _table_version(url, table.model))
    traffic = Traffic(url, table.model, [_slo_class(weight) for weight in _WEIGHTS])
    asyncio.run(traffic.run(cells, _SWEEP_S / len(cells)))
    for name, routes in traffic.routes.items():
        print(f"{name}: {dict(routes)}")
    print(dict(traffic.reasons))
    shares = traffic.shares()
    assert shares[0] >= 0.8
    assert shares[-1] <= left
    assert all(after <= before + 0.1 for before, after in pairwise(shares)), shares


def _slo_class(weight: float) -> str:
    return f"tpot-{weight:g}"


def _dear(table: TableSnapshot) -> list[CellRecord]:
    """Cells where D-local costs TPOT and saves TTFT, the dearest first: elsewhere no weight has to choose."""

    def cost(cell: CellRecord) -> float:
        x0, x1 = cell.paths[Route.P_D], cell.paths[Route.D_LOCAL]
        saves = x1.ttft_ms.mean < x0.ttft_ms.mean
        return x1.tpot_ms.mean / x0.tpot_ms.mean - 1 if saves else 0.0

    both = [cell for cell in table.cells if {Route.P_D, Route.D_LOCAL} <= cell.paths.keys()]
    return sorted((cell for cell in both if cost(cell) > _COSTS), key=cost, reverse=True)[:_CELLS]


def _table_version(url: str, model: str) -> int:
    """That the frontend at `url` decides by; 0 while it has none, or is not up."""
    try:
        return int(httpx.get(f"{url}/health").json()["models"][model]["table_version"] or 0)
    except (httpx.HTTPError, KeyError):
        return 0
