"""Where a profile spends its time."""

import pytest

from planner.profile.choose import Doubt, best
from planner.profile.figures import complete, figures
from ppd.core.cells import CELLS, Cell
from tests.unit.planner.profiles import CLASSES, cell, pair

pytestmark = pytest.mark.unit

TINY, NEAR, FAR = "small/tiny@1", "small/tiny@2", "large/huge_paste@16"


def doubt(points: list, grid: tuple[Cell, ...] = CELLS) -> Doubt:
    return Doubt(grid, complete(figures(points)), CLASSES)


def test_an_unsure_sign_is_in_more_doubt_than_a_clear_one():
    clear = doubt(pair(TINY, (100.0, 40.0))).at(cell(TINY))
    unsure = doubt(pair(TINY, (100.0, 100.0), (10.0, 10.1), spread=0.5)).at(cell(TINY))
    assert unsure > 10 * clear


def test_a_tie_that_is_known_to_be_one_is_not_worth_more_time():
    vague = doubt(pair(TINY, (100.0, 100.0), spread=0.9, n=4)).at(cell(TINY))
    known = doubt(pair(TINY, (100.0, 100.0), spread=0.01, n=400)).at(cell(TINY))
    assert known < vague / 3


def test_doubt_grows_with_distance_from_what_was_measured():
    found = doubt(pair(TINY, (100.0, 90.0)))
    assert found.at(cell(TINY)) < found.at(cell(NEAR)) < found.at(cell(FAR))


def test_with_nothing_measured_the_first_cell_is_one_that_stands_for_many():
    found = doubt([])
    middle, corner = cell("large/mid_bal@4"), cell("huge/very_long_gen@0.5")
    assert found.removed_by(middle) > found.removed_by(corner) > 0


def test_a_far_cell_is_measured_before_a_clear_one_is_repeated():
    costs = dict.fromkeys((cell(TINY), cell(FAR)), 10.0)
    assert best(doubt(pair(TINY, (100.0, 40.0)), tuple(costs)), costs, 100.0) == cell(FAR)


def test_an_open_sign_is_repeated_before_a_clear_one():
    points = pair(TINY, (100.0, 99.0), (10.0, 10.1), spread=0.6) + pair(FAR, (100.0, 30.0), spread=0.6)
    costs = dict.fromkeys((cell(TINY), cell(FAR)), 10.0)
    assert best(doubt(points, tuple(costs)), costs, 100.0) == cell(TINY)


def test_the_dearer_of_two_equals_comes_later():
    costs = {cell(TINY): 10.0, cell(NEAR): 1000.0}
    assert best(doubt([], tuple(costs)), costs, 1e6) == cell(TINY)


def test_nothing_is_begun_that_does_not_fit_into_the_time_left():
    costs = {cell(TINY): 10.0, cell(NEAR): 20.0}
    assert best(doubt([], tuple(costs)), costs, 15.0) == cell(TINY)
    assert best(doubt([], tuple(costs)), costs, 5.0) is None


def test_a_visit_never_adds_doubt():
    found = doubt(pair(TINY, (100.0, 90.0)) + pair(FAR, (100.0, 120.0)))
    assert all(found.removed_by(each) >= 0 for each in CELLS)
