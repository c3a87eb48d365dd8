"""Which table a placement is decided by, and which weights a request's SLO class stands for."""

import logging

import pytest

from controlplane.shared.tables import Tables
from ppd.core import seeds
from ppd.core.names import table_key
from ppd.core.placement import parse_placement
from ppd.core.records import encode
from ppd.core.score import SLO_CLASSES, Weights

pytestmark = pytest.mark.unit


@pytest.fixture
def tables() -> Tables:
    snapshot = seeds.nearest(parse_placement("1P3D"), "m", 1)
    snapshot.weights = {"batch": (1.0, 9.0), "nightly": (0.0, 1.0)}
    held = Tables(logging.getLogger("test"))
    held.update(table_key(snapshot.model, snapshot.placement), encode(snapshot))
    return held


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        ("batch", Weights(1.0, 9.0)),  # the table's word wins over the built-in one
        ("nightly", Weights(0.0, 1.0)),
        ("interactive", SLO_CLASSES["interactive"]),
        ("", SLO_CLASSES["balanced"]),
        ("unheard-of", SLO_CLASSES["balanced"]),
    ],
)
def test_of_a_table(tables: Tables, slo: str, expected: Weights) -> None:
    assert tables.weights(tables.table("m", "1P3D"), slo) == expected


def test_without_a_table_the_built_in_classes_count(tables: Tables) -> None:
    assert tables.weights(None, "batch") == SLO_CLASSES["batch"]
    assert SLO_CLASSES["batch"] != SLO_CLASSES["balanced"]


def test_a_placement_without_a_table_yet_is_decided_by_the_most_similar_one(tables: Tables) -> None:
    assert tables.table("m", "1P2D") is tables.table("m", "1P3D")
    near = seeds.nearest(parse_placement("1P1D"), "m", 1)
    tables.update(table_key("m", "1P1D"), encode(near))
    assert tables.table("m", "2P2D") is tables.table("m", "1P1D"), "a newer table may be more like it"
    assert tables.table("m", "1P4D") is tables.table("m", "1P3D")


@pytest.mark.parametrize(("model", "placement"), [("other", "1P3D"), ("m", "2R"), ("m", "0R"), ("m", "odd")])
def test_nothing_stands_in_for_another_model_or_where_there_is_nothing_to_decide(
    tables: Tables, model: str, placement: str
) -> None:
    assert tables.table(model, placement) is None
