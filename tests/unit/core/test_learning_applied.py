"""Sequence numbers that were applied: against a plain set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core.learning.applied import Applied

pytestmark = pytest.mark.unit

sequences = st.lists(st.integers(0, 60), max_size=80)


@given(sequences)
def test_it_says_new_exactly_once_per_number(numbers):
    applied, plain = Applied(), set()
    for number in numbers:
        assert applied.add(number) == (number not in plain)
        plain.add(number)
    assert {n for n in range(70) if n in applied} == plain
    assert Applied(applied.ranges).ranges == applied.ranges


@given(sequences, st.integers(0, 70))
def test_pruning_closes_all_below_the_floor_and_nothing_else(numbers, floor):
    applied = Applied()
    for number in numbers:
        applied.add(number)
    applied.prune(floor)
    assert {n for n in range(80) if n in applied} == {*numbers, *range(floor + 1)}
    Applied(applied.ranges)


def test_in_order_it_stays_one_range():
    applied = Applied()
    for number in range(1, 10_000):
        applied.add(number)
    assert applied.ranges == [(1, 9_999)]


@pytest.mark.parametrize("ranges", [[(5, 3)], [(1, 4), (3, 8)], [(1, 4), (5, 8)], [(-1, 2)]])
def test_ranges_that_are_none_are_refused(ranges):
    with pytest.raises(ValueError, match="does not follow"):
        Applied(ranges)
