"""The released proxy's routing: what hangs together by one hash, and what is lost between turns."""

import pytest

from ppd.core.names import Route
from simulator.sweep import Constants, simulate

pytestmark = pytest.mark.unit


def routes(config, **changes):
    jobs = simulate((config, "small_tiny", 8.0), Constants(**changes))
    return {
        turn: [
            (j.route.path, j.route.prefill.name if j.route.prefill else "", j.route.worker.name)
            for j in jobs
            if j.index == turn
        ]
        for turn in (0, 1)
    }


def test_one_hash_chooses_prefill_and_decode_worker():
    pairs = {(p, d) for _, p, d in routes("2P_2D")[0]}
    assert pairs == {("P0", "D0"), ("P1", "D1")}
    assert {p for _, p, _ in routes("1R_2P_1D")[0]} == {"", "P1"}


def test_conversations_fall_on_workers_at_random():
    homes = [home for _, _, home in routes("4R", lost=0.0)[0]]
    counts = [homes.count(f"R{i}") for i in range(4)]
    assert min(counts) > 0
    assert max(counts) - min(counts) > 1


def test_a_turn_that_the_proxy_knows_stays_where_its_conversation_lives():
    known = routes("1P_3pD", lost=0.0)
    assert {path for path, _, _ in known[1]} == {Route.D_LOCAL}


def test_a_turn_that_it_does_not_know_is_placed_anew():
    lost = routes("1P_3pD", lost=1.0)
    assert {path for path, _, _ in lost[1]} == {Route.P_D}
    some = routes("1P_3pD", lost=0.25)
    share = sum(path is Route.P_D for path, _, _ in some[1]) / len(some[1])
    assert 0.1 < share < 0.45
