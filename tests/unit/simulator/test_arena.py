"""The arena's arithmetic: regret against the best policy of each condition and seed."""

import pytest

from bench.policies_conditions import conditions
from bench.policies_run import OURS, POLICIES, Outcome, regrets, simulate
from ppd.core import seeds

pytestmark = pytest.mark.unit


def outcome(condition, policy, seed, goodput):
    return Outcome(condition, policy, seed, 1, 1.0, 1.0, goodput, goodput, 1, 0.0, 0.0, 0.0, 0)


def test_regret_is_what_a_policy_loses_to_the_best_of_its_condition():
    found = regrets(
        [
            outcome("a", "x", 0, 0.9),
            outcome("a", "y", 0, 0.45),
            outcome("b", "x", 0, 0.6),
            outcome("b", "y", 0, 0.8),
            outcome("a", "replica", 0, 0.9),
            outcome("b", "replica", 0, 1.0),
        ]
    )
    by_policy = {r.policy: r for r in found}
    assert by_policy["x"].worst == pytest.approx(0.25)
    assert by_policy["x"].mean == pytest.approx(0.125)
    assert by_policy["y"].worst_condition == "a"
    assert [r.policy for r in found][1:] == ["x", "y"]


def test_at_least_twelve_conditions_have_names_of_their_own():
    names = [c.name for c in conditions(None)]
    assert len(set(names)) == len(names) >= 12
    assert OURS in POLICIES


@pytest.mark.parametrize("name", ["drift-link", "mixed-fleet"])
def test_a_condition_runs_and_counts_every_turn_within_its_time(name):
    condition = next(c for c in conditions(None) if c.name == name)
    found = simulate(condition, OURS, 0, 20.0, seeds.load(seeds.name(condition.placement)))
    assert found.turns > 20
    assert 0 < found.goodput <= 1
    assert 0 <= found.explored <= 0.05


def test_always_local_loses_where_p_is_idle():
    condition = next(c for c in conditions(None) if c.name == "prefill-idle")
    table = seeds.load(seeds.name(condition.placement))
    remote, local = (simulate(condition, p, 0, 40.0, table).goodput for p in ("static:x=0", "static:x=1"))
    assert local < 0.6 * remote


@pytest.mark.parametrize("name", ["prefill-idle", "prefill-heavy", "mixed-fleet"])
def test_ours_is_near_the_better_of_both_paths_whichever_that_is(name):
    condition = next(c for c in conditions(None) if c.name == name)
    table = seeds.load(seeds.name(condition.placement))
    remote, local, ours = (
        simulate(condition, p, 0, 60.0, table).goodput for p in ("static:x=0", "static:x=1", OURS)
    )
    assert abs(remote - local) > 0.05  # it matters
    assert ours > 0.95 * max(remote, local)
