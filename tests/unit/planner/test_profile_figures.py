"""Points -> figures -> table."""

import pytest

from planner.profile import build, figures
from planner.profile.capacity import MeasuredShape
from planner.profile.records import Flag, Head, Point, ProfileError, TurnSample
from ppd.core.cells import Context, Ratio
from ppd.core.names import Provenance, Route
from ppd.core.table import Table
from tests.unit.planner.profiles import cell, pair, point, samples

pytestmark = pytest.mark.unit

TINY = "small/tiny@0.5"
HEAD = Head(model="m", placement="1P1D", hardware="h", turns=2)


def test_repeats_are_pooled_and_the_spread_is_that_of_a_turn():
    found = figures.figures([point(TINY, Route.P_D, 100.0), point(TINY, Route.P_D, 200.0)])
    ttft = found[cell(TINY)].paths[Route.P_D].ttft
    assert ttft.mean == pytest.approx(150.0)
    assert (ttft.n, ttft.points) == (20, 2)
    assert 45 < ttft.sd < 60


def test_more_turns_leave_a_smaller_error_but_never_none():
    few = figures.figures([point(TINY, Route.P_D, 100.0, n=4)])[cell(TINY)].paths[Route.P_D].ttft
    many = figures.figures([point(TINY, Route.P_D, 100.0, n=4000)])[cell(TINY)].paths[Route.P_D].ttft
    again = figures.figures(2 * [point(TINY, Route.P_D, 100.0, n=4000)])[cell(TINY)].paths[Route.P_D].ttft
    assert few.error > many.error > again.error > 0


def test_failed_points_count_for_nothing():
    bad = point(TINY, Route.P_D, 1.0, flag=Flag.FAILED)
    assert figures.figures([bad]) == {}
    found = figures.figures([bad, point(TINY, Route.P_D, 100.0)])
    assert found[cell(TINY)].paths[Route.P_D].ttft.mean == pytest.approx(100.0)


def test_saturated_points_count_only_where_their_path_has_no_other():
    full = point(TINY, Route.P_D, 900.0, flag=Flag.SATURATED)
    alone = figures.figures([full])[cell(TINY)].paths[Route.P_D]
    assert alone.saturated
    assert alone.ttft.mean == pytest.approx(900.0)
    beside = figures.figures([full, point(TINY, Route.P_D, 100.0)])[cell(TINY)].paths[Route.P_D]
    assert not beside.saturated
    assert beside.ttft.mean == pytest.approx(100.0)


def test_turns_that_failed_are_left_out_of_a_good_point():
    mixed = Point(
        cell=TINY,
        path=Route.P_D,
        rate=0.5,
        samples=(*samples(10, 100.0), TurnSample(turn=2, error="500")),
        seconds=1.0,
    )
    assert figures.figures([mixed])[cell(TINY)].paths[Route.P_D].ttft.n == 10


def test_both_paths_are_compared_at_one_rate():
    points = [
        point(TINY, Route.P_D, 500.0, rate=0.5),
        point(TINY, Route.D_LOCAL, 300.0, rate=0.5),
        point(TINY, Route.P_D, 100.0, rate=0.2),
    ]
    found = figures.figures(points)[cell(TINY)]
    assert (found.rate, found.complete) == (0.5, True)
    found = figures.figures([*points, point(TINY, Route.D_LOCAL, 50.0, rate=0.2)])[cell(TINY)]
    assert found.rate == 0.2
    assert found.paths[Route.P_D].ttft.mean == pytest.approx(100.0)


def test_later_turns_belong_to_the_context_that_they_met():
    grown = TurnSample(turn=3, ttft_ms=70.0, tpot_ms=10.0, n_ctx=600, n_in=16, n_out=32)
    both = Point(cell=TINY, path=Route.P_D, rate=0.5, samples=(*samples(4, 50.0), grown), seconds=1.0)
    found = figures.figures([both])
    assert found[cell(TINY)].paths[Route.P_D].ttft.n == 4
    assert found[cell("large/tiny@0.5")].paths[Route.P_D].ttft.mean == 70.0


def test_a_rate_is_given_up_after_two_flags_and_not_after_one():
    flagged = point("small/tiny@4", Route.P_D, 1.0, flag=Flag.SATURATED)
    shape = MeasuredShape(Context.SMALL, Ratio.TINY)
    assert figures.ceilings([flagged]) == {}
    assert figures.ceilings([flagged, flagged])[shape] < 4
    other = point("small/tiny@4", Route.D_LOCAL, 1.0, flag=Flag.SATURATED)
    assert figures.ceilings([flagged, other]) == {}


def test_the_table_says_what_was_measured():
    points = [*pair(TINY, (100.0, 50.0), (10.0, 11.0), rate=0.2), point("small/mid_bal@1", Route.P_D, 90.0)]
    made = build.snapshot(HEAD, figures.figures(points))
    table = Table(made)
    row = table.lookup(cell(TINY).slot)
    assert row.exact
    assert row.expected[Route.D_LOCAL].ttft_ms == pytest.approx(50.0)
    assert row.record.measured_qps == 0.2
    estimate = row.record.paths[Route.P_D.value]
    assert estimate.provenance is Provenance.MEASURED
    assert (estimate.ttft_ms.n, estimate.tpot_ms.n) == (10, 10)
    assert not table.lookup(cell("small/mid_bal@1").slot).exact  # one path alone cannot be scored
    assert (made.model, made.placement, made.hardware) == ("m", "1P1D", "h")


def test_a_cell_at_a_lower_rate_is_taken_to_have_had_a_smaller_batch():
    usual = Table(build.snapshot(HEAD, figures.figures(pair(TINY, (100.0, 50.0)))))
    slow = Table(build.snapshot(HEAD, figures.figures(pair(TINY, (100.0, 50.0), rate=0.1))))
    slot = cell(TINY).slot
    assert slow.lookup(slot).baseline.running == pytest.approx(usual.lookup(slot).baseline.running / 5)


def test_points_of_one_path_make_no_table():
    with pytest.raises(ProfileError, match="do not make a table"):
        build.snapshot(HEAD, figures.figures([point(TINY, Route.P_D, 1.0)]))
