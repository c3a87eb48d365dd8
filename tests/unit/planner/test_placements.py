"""Which tables are made, and from what."""

import msgspec
import pytest

from planner.placements import WantedPlacements, first_table, running_placements
from ppd.core import seeds
from ppd.core.names import WorkerStatus, table_key
from ppd.core.placement import Placement, parse_placement
from ppd.core.records import WorkerRecord

pytestmark = pytest.mark.unit


def workers(
    placement: str, model: str = "m", status: WorkerStatus = WorkerStatus.READY
) -> list[WorkerRecord]:
    return [
        WorkerRecord(worker_id=f"{model}{n}", name="w", role=role, model=model, url="http://x", status=status)
        for n, role in enumerate(parse_placement(placement).roles())
    ]


def test_only_ready_workers_count_and_only_placements_with_a_choice():
    assert running_placements(workers("2P1D") + workers("1R", "other")) == {"m": Placement(2, 1)}
    assert running_placements(workers("2P1D", status=WorkerStatus.DRAINING)) == {}
    both = running_placements(workers("1P1D1R") + workers("1P3D", "n"))
    assert both == {"m": Placement(1, 1, 1), "n": Placement(1, 3)}


def test_a_models_first_placement_gets_its_table_at_once():
    wanted = WantedPlacements(10)
    wanted.see(workers("1P1D"), 100.0)
    assert wanted.missing(set(), set(), 100.0) == [("m", Placement(1, 1))]
    assert wanted.missing({table_key("m", "1P1D")}, {"m"}, 200.0) == []


def test_another_placement_must_last_and_a_change_in_between_starts_anew():
    wanted, known = WantedPlacements(10), {table_key("m", "2P2D")}
    wanted.see(workers("1P2D"), 100.0)
    assert wanted.missing(known, {"m"}, 109.0) == []
    wanted.see(workers("2P2D"), 109.0)
    wanted.see(workers("1P2D"), 110.0)
    assert wanted.missing(known, {"m"}, 119.0) == []
    wanted.see(workers("1P2D"), 119.0)
    assert wanted.missing(known, {"m"}, 120.0) == [("m", Placement(1, 2))]


def test_a_first_table_is_the_nearest_seed_until_something_better_is_known():
    seed = first_table("m", Placement(1, 2), [seeds.nearest(Placement(2, 2), "m")])
    assert seed.source.startswith("seed")
    learned = [
        msgspec.structs.replace(
            seeds.nearest(parse_placement(p), "m"), version=7, source="online: x", frozen=True
        )
        for p in ("2P2D", "3P1D")
    ]
    odd = msgspec.structs.replace(learned[0], placement="custom")
    other_model = msgspec.structs.replace(learned[0], model="n", placement="1P2D")
    made = first_table("m", Placement(1, 2), [odd, other_model, *learned])
    assert made.source == "version 7 of 2P2D, the placement most like 1P2D"
    assert (made.model, made.placement, made.version, made.frozen) == ("m", "1P2D", 1, False)
