"""Begun with a table of other hardware, the online loop comes to the verdicts that a profile measures."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.profile.figures import Figure
from ppd.core.cells import CELLS, CONTEXT_TOKENS, SHAPES, Cell
from ppd.core.learning.publication import MAX_EXPLORE
from ppd.core.learning.ratios import Belief
from ppd.core.learning.verdicts import MARGIN, SIGMAS, Cost, score_error
from ppd.core.names import Route
from ppd.core.records import CellRecord, Estimate, TableSnapshot, decode
from ppd.core.score import SLO_CLASSES, Expected, Weights, delta_tpot, delta_ttft, score
from ppd.core.table import Table
from tests.e2e.cell_traffic import Traffic
from tests.e2e.conftest import running
from tests.e2e.local_stack import LocalStack, eventually
from tests.e2e.measured import KEPT, kept_profile, planner_status, profile

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

_TRAFFIC_S = float(os.environ.get("PPD_TEST_TRAFFIC_S", "600"))
_CELLS = int(os.environ.get("PPD_TEST_CELLS", "2"))
# Spent on those cells once more: the verdicts to be found should be the hardware's, not the profile's luck.
_SHARPER = os.environ.get("PPD_TEST_SHARPER", "290s")
_CLASSES = dict(SLO_CLASSES)  # and `steady`, whose weight tells the two kinds of hardware apart
_MOST = 64.0  # times that TPOT may count as much as TTFT


class Verdict:
    """What a table says of one cell in one class; `sure` by the spread of its own figures."""

    def __init__(self, table: Table, cell: Cell, weights: Weights) -> None:
        row = table.lookup(cell.slot)
        x0, x1 = (_cost(row.record, path) for path in (Route.P_D, Route.D_LOCAL))
        self.score = score(x0.expected, x1.expected, weights.ttft, weights.tpot)
        self.error = score_error(x0, x1, weights)
        self.local = self.score > 0
        self.sure = abs(self.score) > max(MARGIN, SIGMAS * self.error)

    def __str__(self) -> str:
        return f"{'D' if self.local else 'P'}{self.score:+.2f}{'' if self.sure else '?'}"


def _cost(record: CellRecord, path: Route) -> Cost:
    each = record.paths[path]
    return Cost(Expected(each.ttft_ms.mean, each.tpot_ms.mean), _belief(each.ttft_ms), _belief(each.tpot_ms))


def _belief(estimate: Estimate) -> Belief:
    spread = Figure(estimate.mean, estimate.sd, max(1, round(estimate.n)), 1)
    return Belief(1.0, spread.error, estimate.sd / estimate.mean, estimate.n)


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    """Explores as much as may be: ten minutes of two CPU engines are a few hundred turns."""
    with running(LocalStack(tmp_path / "stack", PPD_EXPLORE=f"{MAX_EXPLORE}")) as started:
        yield started


def test_the_loop_finds_the_verdicts_of_a_profile(stack: LocalStack, tmp_path: Path):
    folder = KEPT or tmp_path / "profile"
    cells = _chosen(_served(stack), Table(kept_profile(stack, folder)))
    fresh = Table(profile(stack, folder, *_only(cells), budget=_SHARPER))
    apart = (_break_even(_served(stack), cells[0]) * _break_even(fresh, cells[0])) ** 0.5
    _CLASSES["steady"] = Weights(ttft=1.0, tpot=round(apart, 1))
    _told(stack, "rebuild")  # what the forced turns of the profile taught is dropped
    for name, weights in _CLASSES.items():
        _told(stack, "set-weights", name, f"{weights.ttft:g}", f"{weights.tpot:g}")
    seed = _served(stack)
    assert any(_wrong(cell, seed, fresh) for cell in cells), "the seed is right: there is nothing to find"

    traffic = Traffic(stack.url, fresh.model, list(_CLASSES))
    asyncio.run(traffic.run([fresh.lookup(cell.slot).record for cell in cells], _TRAFFIC_S / len(cells)))
    for name, routes in traffic.routes.items():
        print(f"{name}: {dict(routes)}")
    print(dict(traffic.reasons))
    try:
        eventually(lambda: not any(_wrong(cell, _served(stack), fresh) for cell in cells), within_s=40)
    finally:
        _show(cells, seed, _served(stack), fresh)
        print(stack.ppd("table", "history").stdout)
        print(json.dumps(planner_status(stack)["tables"], indent=1))


def _told(stack: LocalStack, *args: str) -> str:
    done = stack.ppd("table", *args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _served(stack: LocalStack) -> Table:
    return Table(decode(_told(stack, "show", "--json").encode(), TableSnapshot))


def _chosen(seed: Table, fresh: Table) -> list[Cell]:
    """Cells of the profile that contradict the seed in some class, the surest ones.

    Only those that a second turn can be told to belong to: the router takes an answer to be as long as the
    last one, or as its limit.
    """

    def sureness(cell: Cell) -> float:
        both = _verdicts([cell], seed, fresh).values()
        return max(abs(its.score) / its.error if its.local is not old.local else 0.0 for old, its in both)

    measured = [cell for cell in CELLS if fresh.lookup(cell.slot).exact]
    known = [cell for cell in measured if SHAPES[cell.ratio].n_out <= CONTEXT_TOKENS[cell.context] // 2]
    return sorted(known, key=sureness, reverse=True)[:_CELLS]


def _break_even(table: Table, cell: Cell) -> float:
    """The weight of TPOT, against 1 for TTFT, from which on a turn goes P->D; _MOST if none is enough."""
    row = table.lookup(cell.slot)
    saved, added = delta_ttft(row.p_d, row.d_local), delta_tpot(row.p_d, row.d_local)
    return min(_MOST, max(saved, 0.01) / added) if added > 0 else _MOST


def _only(cells: list[Cell]) -> list[str]:
    """Flags of `ppd profile`."""
    shapes = ",".join({f"{cell.context}/{cell.ratio}" for cell in cells})
    levels = ",".join({f"{cell.qps:g}" for cell in cells})
    return ["--cells", shapes, "--levels", levels]


def _wrong(cell: Cell, table: Table, fresh: Table) -> int:
    """Verdicts of `table` that the profile surely contradicts."""
    both = _verdicts([cell], table, fresh).values()
    return sum(theirs.sure and theirs.local is not mine.local for mine, theirs in both)


def _verdicts(cells: list[Cell], *tables: Table) -> dict[tuple[Cell, str], list[Verdict]]:
    return {
        (cell, name): [Verdict(table, cell, weights) for table in tables]
        for cell in cells
        for name, weights in _CLASSES.items()
    }


def _show(cells: list[Cell], *tables: Table) -> None:
    """Seed, learned and measured, side by side: TTFT and TPOT in ms, then each class's verdict."""
    names = ("seed", "learned", "profile")
    for cell in cells:
        for path in (Route.P_D, Route.D_LOCAL):
            found = [table.lookup(cell.slot).expected[path] for table in tables]
            figures = "   ".join(
                f"{name} {each.ttft_ms:7.1f} {each.tpot_ms:6.2f}"
                for name, each in zip(names, found, strict=True)
            )
            print(f"{cell!s:22} {path:8} {figures}")
    for (cell, name), verdicts in _verdicts(cells, *tables).items():
        print(f"{cell!s:22} {name:12} " + "   ".join(f"{v!s:10}" for v in verdicts))
