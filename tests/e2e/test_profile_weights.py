"""A profile of real engines that serves, and what TPOT's weight does to the route (the paper's Figure 6)."""

import asyncio
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from ppd.core.names import Path as Route
from ppd.core.records import TableSnapshot, decode
from tests.e2e.local_stack import LocalStack
from tests.e2e.weight_sweep import WEIGHTS, Sweep, slo_class

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

_BUDGET = os.environ.get("PPD_TEST_PROFILE_BUDGET", "10m")
_SWEEP_S = float(os.environ.get("PPD_TEST_SWEEP_S", "90"))
_RATE = 0.3  # conversations a second, of seven turns each: what two CPU engines serve


def test_a_measured_table_serves_and_the_weights_move_the_route(real_stack: LocalStack, tmp_path: Path):
    out = Path(os.environ.get("PPD_TEST_PROFILE_OUT") or tmp_path / "profile")
    done = subprocess.run(
        real_stack.command("profile", "--budget", _BUDGET, "--out", str(out), "--publish"),
        env=real_stack.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    table = decode((out / "table.json").read_bytes(), TableSnapshot)
    both = [c for c in table.cells if {Route.P_D.value, Route.D_LOCAL.value} <= c.paths.keys()]
    assert len(both) >= 3
    assert (out / "report.html").stat().st_size > 10_000

    for weight in WEIGHTS:
        set_weights = real_stack.ppd("table", "set-weights", slo_class(weight), "1", f"{weight:g}")
        assert set_weights.returncode == 0, set_weights.stderr
    model = table.model
    sweep = Sweep(real_stack.url, model, _RATE)
    asyncio.run(sweep.run(_SWEEP_S))
    for weight, routes in sweep.routes.items():
        print(f"w_tpot {weight:g}: {dict(routes)}")
    print(dict(sweep.reasons))
    shares = sweep.shares()
    assert shares[0] >= 0.8  # what is left goes P->D because D is busy just then
    assert shares[-1] <= 0.2
    assert all(after <= before + 0.1 for before, after in pairwise(shares)), shares
