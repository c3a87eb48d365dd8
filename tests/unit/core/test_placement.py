"""Placements: every writing of one is read, everything else is refused with a hint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppd.core.names import Role
from ppd.core.placement import Placement, PlacementError, parse_placement, placement_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1P1D", Placement(1, 1, 0)),
        ("2p_2d", Placement(2, 2, 0)),
        ("1R", Placement(0, 0, 1)),
        ("1P1D1R", Placement(1, 1, 1)),
        (" 3D1P ", Placement(1, 3, 0)),
        ("1P1R", Placement(1, 0, 1)),
    ],
)
def test_reads(text, expected):
    assert parse_placement(text) == expected


@pytest.mark.parametrize(
    "text", ["", "P", "1X", "1P", "2D", "0R", "1P1P1D", "65R", "1P 1D", "-1R", "1P1D;rm", "१R"]
)
def test_refuses(text):
    with pytest.raises(PlacementError):
        parse_placement(text)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_round_trip(prefill, decode, replica):
    placement = Placement(prefill, decode, replica)
    if replica or (prefill and decode):
        assert parse_placement(str(placement)) == placement
    assert placement_of(placement.roles()) == placement
    assert placement.roles().count(Role.DECODE) == decode
