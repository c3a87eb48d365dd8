"""The calibrated model against the authors' measurements, within tolerances."""

from statistics import median

import pytest

from ppd.core.seeds import sweep
from simulator.calibrate import errors, split
from simulator.sweep import CONFIGS, WORKLOADS, Constants, conversations, keys, parse_config, simulate

pytestmark = pytest.mark.unit
CONSTANTS = Constants()


def test_the_sweep_has_all_3060_points_and_so_has_the_measurement():
    assert len(keys()) == len(CONFIGS) * len(WORKLOADS) * 10 == 3060
    assert set(keys()) == set(sweep.points())


def test_the_parts_of_the_sweep_are_apart_and_leave_out_what_crashed():
    train, held_out = split(sweep.points().values())
    assert not {id(p) for p in train} & {id(p) for p in held_out}
    assert all(p.usable for p in (*train, *held_out))
    assert {p.config for p in train} == set(CONFIGS)


def test_placements_of_the_sweep_are_read():
    assert [name for name, _ in parse_config("1R_1P_2pD")] == ["R0", "P0", "pD0", "pD1"]
    with pytest.raises(ValueError, match="no placement"):
        parse_config("2X")


def test_a_point_is_reproducible_to_the_bit():
    def times():
        return [(j.first_s, j.end_s) for j in simulate(("2P_2pD", "large_tiny", 8.0), CONSTANTS)]

    assert times() == times()
    assert conversations("small_tiny", 4.0, 0) != conversations("small_tiny", 4.0, 1)


def test_held_out_points_are_predicted_within_the_tolerance():
    """Every 37th held-out point: medians, some slack above what `ppd bench paper` shows."""
    _, held_out = split(sweep.points().values())
    found = list(errors(held_out[::37], CONSTANTS))
    assert len(found) > 60
    assert median(abs(e.tpot) for e in found) < 0.06
    assert median(abs(e.ttft) for e in found) < 0.18
