"""The benchmark measures what it says: its cases reach every branch, and it prints each policy."""

import json

import pytest

from bench import decide
from ppd.core import policies, seeds
from ppd.core.names import Reason
from ppd.core.score import Weights
from ppd.core.table import Table

pytestmark = pytest.mark.unit


def test_its_cases_are_the_same_each_time_and_reach_the_live_correction():
    cases = decide.make_cases(200)
    assert cases == decide.make_cases(200)
    table = Table(seeds.load(seeds.name("2P2D")))
    policy = policies.make("adaptive")
    reasons = {policy.decide(turn, view, table, Weights()).reason for turn, view in cases}
    assert {Reason.FIRST_TURN, Reason.TABLE_LIVE} <= reasons


def test_it_prints_every_policy(capsys):
    assert decide.main(["--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["decide"]
    assert {"trivial", "adaptive:correction=0", *policies.NAMES} == set(found)
    assert all(0 < got["p50_us"] <= got["p99_us"] for got in found.values())
