"""The calibrated model against the authors' measurements, within tolerances."""

from statistics import median

import msgspec
import pytest

from ppd.core.seeds import sweep
from simulator.calibrate import errors, noise, split
from simulator.sweep import (
    CONFIGS,
    WORKLOADS,
    Constants,
    conversations,
    keys,
    parse_config,
    run,
    simulate,
)

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


def test_a_points_part_hangs_on_nothing_but_its_name():
    points = list(sweep.points().values())
    train, _ = split(points)
    assert 0.17 < len(train) / sum(p.usable for p in points) < 0.23
    few = points[::-3]
    assert set(split(few)[0]) == {p for p in train if p in few}


def test_a_point_has_as_many_chats_as_its_rate_and_time_give_and_no_more():
    for seed in range(20):
        assert 1 <= len(conversations("small_tiny", 0.5, seed)) <= 5
        assert len(conversations("small_tiny", 4.0, seed, count=40)) == 40
        fewer = conversations("small_tiny", 4.0, seed, count=29)
        assert len(fewer) == 29
        starts = [c.start_s for c in fewer]
        assert starts == sorted(starts)
        assert starts[0] >= 0
        assert starts[-1] < 10


def test_a_prediction_is_the_middle_of_its_seeds():
    key = ("2P_2pD", "small_tiny", 4.0)
    single = [next(run([key], CONSTANTS, (seed,))) for seed in range(3)]
    (found,) = run([key], CONSTANTS, (0, 1, 2))
    assert found.ttft_ms == sorted(p.ttft_ms for p in single)[1]
    assert found.tpot_ms == sorted(p.tpot_ms for p in single)[1]


def test_held_out_points_are_predicted_within_the_tolerance():
    """Every 31st held-out point: medians, some slack above what `ppd bench fit --check` shows."""
    _, held_out = split(sweep.points().values())
    found = list(errors(held_out[::31], CONSTANTS, seeds=(0,)))
    assert len(found) > 60
    assert median(abs(e.tpot) for e in found) < 0.04
    assert median(abs(e.ttft) for e in found) < 0.14


def test_the_scatter_of_a_smooth_line_is_none_and_of_the_measurement_some():
    points = [p for p in sweep.points().values() if p.usable]
    smooth = [msgspec.structs.replace(p, ttft_ms=50 * p.qps**0.5) for p in points]
    assert max(noise(smooth).values()) < 1e-9
    measured = noise(points)
    assert len(measured) == 51
    assert 0.05 < median(measured.values()) < 0.1
