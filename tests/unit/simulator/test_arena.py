"""The arena's arithmetic: regret against the best policy of each condition and seed."""

from dataclasses import replace

import pytest

from bench import policies_rates
from bench.policies_conditions import RATE_SEEDS, NoRateError, conditions, rates
from bench.policies_regret import claims, regrets
from bench.policies_run import OURS, POLICIES, Outcome, simulate
from bench.policies_store import Store
from ppd.core import seeds

pytestmark = pytest.mark.unit


def outcome(condition, policy, seed, goodput, late=None, turns_late=500, explored=0.0, drifts=False):
    late = goodput if late is None else late
    return Outcome(
        condition, policy, seed, 1, 1.0, 1.0, goodput, late, turns_late, 0.0, 0.0, explored, 0, drifts
    )


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


def test_an_interval_over_few_seeds_is_as_wide_as_student_says():
    found = regrets(
        [outcome("a", "x", s, g) for s, g in enumerate((0.9, 0.8, 0.7))]
        + [outcome("a", "best", s, 1.0) for s in range(3)]
    )
    mean, spread = found[-1].by_condition["a"]
    assert mean == pytest.approx(0.2)
    assert spread == pytest.approx(4.30 * 0.1 / 3**0.5)
    assert found[-1].worst_single == pytest.approx(0.3)


def test_claims_tell_what_was_met_what_was_missed_and_what_cannot_be_told():
    runs = [
        outcome("a", OURS, 0, 0.95, explored=0.01),
        outcome("a", "rival", 0, 1.0),
        outcome("drift", OURS, 0, 0.9, late=0.9, drifts=True),
        outcome("drift", "rival", 0, 0.8, late=1.0, drifts=True),
        outcome("drift-short", OURS, 0, 0.9, late=0.9, turns_late=3, drifts=True),
        outcome("drift-short", "rival", 0, 0.9, late=0.9, drifts=True),
    ]
    judged = {(c.what, c.where): c.met for c in claims(runs)}
    assert list(judged.values()) == [False, True, True, False, None]
    assert claims([r for r in runs if r.policy != OURS]) == []


def test_a_stopped_run_goes_on_from_its_folder_but_not_from_other_rates(tmp_path):
    condition = next(c for c in conditions(None) if c.name == "p-plenty")
    found = outcome("p-plenty", OURS, 3, 0.9)
    Store(tmp_path).keep(condition, found, 60.0)
    again = Store(tmp_path)
    assert again.outcome(condition, OURS, 3, 60.0) == found
    assert again.outcome(condition, OURS, 3, 61.0) is None
    assert again.outcome(replace(condition, rate=condition.rate * 2), OURS, 3, 60.0) is None
    assert again.outcome(condition, OURS, 4, 60.0) is None
    assert Store(None).outcome(condition, OURS, 3, 60.0) is None
    (tmp_path / "p-plenty" / OURS / "3.json").write_text("{")
    assert again.outcome(condition, OURS, 3, 60.0) is None


def test_every_condition_has_a_rate_that_was_found():
    assert {*rates(), "drift-traffic"} == {*(c.name for c in conditions(None)), "mooncake", "drift-traffic"}
    with pytest.raises(NoRateError, match="policies_rates"):
        conditions(None, at={})


@pytest.mark.parametrize(("capacity", "best"), [(5.3, 1), (0.2, 0), (30.0, 2)])
def test_the_rate_is_the_highest_at_which_a_fixed_share_keeps_nine_tenths(monkeypatch, capacity, best):
    asked = []

    def simulated(condition, policy, seed, duration_s, table):
        asked.append((policy, seed))
        mine = capacity if policy == policies_rates.SHARES_LOCAL[best] else capacity / 2
        return outcome(condition.name, policy, seed, min(1.0, 0.9 * mine / condition.rate))

    monkeypatch.setattr(policies_rates, "simulate", simulated)
    found = policies_rates.search(conditions(None)[0], 60.0)
    assert found.rate <= capacity < 1.06 * found.rate
    assert found.policy == policies_rates.SHARES_LOCAL[best]
    assert found.goodput >= 0.9
    assert {seed for _, seed in asked} == set(RATE_SEEDS)
    assert {policy for policy, _ in asked} == set(policies_rates.SHARES_LOCAL)


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
