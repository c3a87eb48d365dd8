"""`ppd profile` against a whole stack of simulated engines: measures, is interrupted, goes on, publishes."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from planner.profile.journal import Journal
from ppd.core.names import Route
from ppd.core.records import TableSnapshot, decode
from tests.e2e.local_stack import LocalStack, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.sim, pytest.mark.timeout(300)]

_CELLS = ("--cells", "small/tiny,small/mid_paste", "--levels", "4,8", "--budget", "40s")


def test_a_profile_goes_on_after_an_interruption_and_its_table_serves(sim_stack: LocalStack, tmp_path: Path):
    up = sim_stack.up("--engine", "sim", "--placement", "1P1D")
    assert up.returncode == 0, up.stdout + up.stderr
    out = tmp_path / "profile"
    command = sim_stack.command("profile", *_CELLS, "--out", str(out))

    first = subprocess.Popen(command, env=sim_stack.environment, stdout=subprocess.PIPE, text=True)
    journal = out / "journal.jsonl"
    eventually(lambda: journal.exists() and len(Journal(journal).points) >= 2)
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=60)
    assert first.returncode == 130, told
    before = Journal(journal).points

    again = sim_stack.ppd("profile", *_CELLS, "--out", str(out), "--publish")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"going on with the {len(before)} points" in again.stdout
    points = Journal(journal).points
    assert points[: len(before)] == before
    assert all(sample.ok for point in points for sample in point.samples)
    assert {point.path for point in points} >= {Route.P_D, Route.D_LOCAL}

    table = decode((out / "table.json").read_bytes(), TableSnapshot)
    names = {f"{cell.context}/{cell.ratio}@{cell.qps:g}" for cell in table.cells}
    assert names
    assert names <= {"small/tiny@4", "small/tiny@8", "small/mid_paste@4", "small/mid_paste@8"}
    assert "the frontend serves by version" in again.stdout
    kept = json.loads(sim_stack.ppd("table", "history", "--json").stdout)
    assert table.source in [version["source"] for version in kept]
    served = json.loads(sim_stack.ppd("table", "show", "--json").stdout)
    assert len(served["cells"]) == len(table.cells)

    other = sim_stack.ppd("profile", *_CELLS, "--out", str(out), "--turns", "3")
    assert other.returncode == 1
    assert "measured with turns 2, and now it is 3" in other.stderr


def test_without_the_admin_key_nothing_is_measured(sim_stack: LocalStack, tmp_path: Path):
    assert sim_stack.up("--engine", "sim", "--placement", "1P1D").returncode == 0
    sim_stack.environment["PPD_ADMIN_KEY"] = "another"
    out = tmp_path / "profile"
    done = sim_stack.ppd("profile", *_CELLS, "--out", str(out))
    assert done.returncode == 1
    assert "PPD_ADMIN_KEY" in done.stderr
    assert Journal(out / "journal.jsonl").points == []
