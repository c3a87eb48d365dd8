"""The simulated cluster: conserved turns and bytes, reproducible runs, and what load, paths and faults do."""

from dataclasses import replace
from statistics import fmean

import pytest

from ppd.core import policies, seeds
from ppd.core.names import Role, Route
from ppd.core.score import Weights
from ppd.core.table import Table
from simulator import offline, workloads
from simulator.cluster import SimCluster
from simulator.conversation import Conversation, TurnSpec
from simulator.fixed import FixedRouter
from simulator.fleet import fleet
from simulator.online import Online
from simulator.router import PolicyRouter

pytestmark = pytest.mark.unit
SEED = seeds.load(seeds.name("2P2D"))


def run(policy, chats, placement="2P2D", spec=None, online=False, **options):
    loop = Online(SEED) if online else None
    router = PolicyRouter(policies.make(policy), Table(SEED), Weights(), placement, loop, **options)
    cluster = SimCluster(spec or fleet(placement), router)
    return cluster, cluster.run(chats)


@pytest.mark.parametrize("policy", policies.NAMES)
def test_every_turn_ends_once_and_no_block_is_left_in_use(policy):
    chats = workloads.generate(workloads.SHAREGPT, 3.0, 15.0, seed=3)
    cluster, jobs = run(policy, chats)
    assert sorted((j.conversation.id, j.index) for j in jobs) == [
        (c.id, i) for c in chats for i in range(len(c.turns))
    ]
    assert not any(j.failed for j in jobs)
    assert all(w.engine.pool.in_use == 0 and w.engine.leased == 0 for w in cluster.workers)
    generated = sum(w.engine.generated_tokens for w in cluster.workers if w.role is not Role.PREFILL)
    assert generated == sum(j.n_out for j in jobs)
    sent = sum(w.egress.bytes for w in cluster.workers)
    received = sum(w.ingress.bytes for w in cluster.workers)
    assert sent == received == sum(j.kv_bytes for j in jobs)


@pytest.mark.parametrize("policy", ["adaptive", "ampd"])
def test_the_same_seed_gives_the_same_times_to_the_bit(policy):
    def times():
        chats = workloads.generate(workloads.WILDCHAT, 4.0, 10.0, seed=5)
        return [(j.conversation.id, j.index, j.first_s, j.end_s) for j in run(policy, chats, online=True)[1]]

    assert times() == times()


def test_what_the_chosen_p_is_thought_to_hold_it_holds():
    """Turns of one conversation go to either P; what the other one computed is not in its cache."""
    chats = workloads.generate(workloads.PREFILL_HEAVY, 12.0, 8.0, seed=4)
    _, jobs = run("static:x=0", chats)
    later = [j for j in jobs if j.index > 0]
    assert len({j.route.prefill.name for j in later}) == 2
    thought, held = sum(j.note.turn.p_cached for j in later), sum(j.cached_p for j in later)
    assert held > 0.99 * thought > 0


@pytest.mark.parametrize("policy", ["static:x=0", "static:x=1"])
def test_a_higher_rate_of_the_same_chats_is_never_faster_on_average(policy):
    turns = (TurnSpec(512, 200), TurnSpec(128, 200))

    def mean_e2e(per_s):
        chats = [Conversation(i, i / per_s, turns) for i in range(60)]
        return fmean(j.e2e_s for j in run(policy, chats)[1])

    slow, middle, fast = (mean_e2e(rate) for rate in (1, 8, 64))
    assert slow < middle < fast


def test_a_slower_link_costs_p_to_d_and_not_d_local():
    chats = workloads.generate(workloads.WILDCHAT, 1.0, 20.0, seed=1)

    def ttft(policy, gb_s):
        _, jobs = run(policy, chats, spec=fleet("2P2D", link_gb_s=gb_s))
        return fmean(j.ttft_s for j in jobs if j.index > 0)

    assert ttft("static:x=0", 0.5) > ttft("static:x=0", 50.0) + 0.03
    assert ttft("static:x=1", 0.5) == pytest.approx(ttft("static:x=1", 50.0), rel=0.1)


def test_d_local_moves_only_the_first_turns_kv():
    chats = workloads.generate(workloads.SHAREGPT, 2.0, 15.0, seed=2)
    _, local = run("static:x=1", chats)
    _, remote = run("static:x=0", chats)
    assert all(j.kv_bytes == 0 for j in local if j.index > 0)
    assert sum(j.kv_bytes for j in local) < sum(j.kv_bytes for j in remote)
    assert {j.route.path for j in local if j.index > 0} == {Route.D_LOCAL}


def test_a_streak_of_local_turns_makes_the_next_p_to_d_dearer():
    class Streak(FixedRouter):
        def __init__(self, local):
            super().__init__(frozenset())
            self._turns = local

        def route(self, job, cluster):
            found = super().route(job, cluster)
            return replace(found, path=Route.D_LOCAL, prefill=None) if job.index in self._turns else found

    def last_ttft(streak):
        chat = Conversation(0, 0.0, (TurnSpec(256, 256),) * 12)
        return SimCluster(fleet("1P1D"), Streak(range(11 - streak, 11))).run([chat])[-1].ttft_s

    assert last_ttft(0) < last_ttft(4) < last_ttft(10)


def test_pull_back_spares_p_the_recomputing_of_answers():
    chat = Conversation(0, 0.0, (TurnSpec(512, 512),) * 4)

    def computed(pullback):
        class Back(FixedRouter):
            def route(self, job, cluster):
                found = super().route(job, cluster)
                return replace(found, pullback=pullback and job.index > 0, hold=pullback)

        cluster = SimCluster(fleet("1P1D"), Back(frozenset()))
        cluster.run([chat])
        return cluster.of(Role.PREFILL)[0].engine.prefilled_tokens

    assert computed(False) - computed(True) == pytest.approx(3 * 512, abs=3 * 17)


def test_text_that_is_tokenized_anew_hides_answers_from_the_cache():
    chat = Conversation(0, 0.0, (TurnSpec(512, 512), TurnSpec(64, 8)))

    def cached(**kind):
        chats = [replace(chat, **kind)]
        return SimCluster(fleet("1R"), FixedRouter(frozenset())).run(chats)[-1].cached_d

    assert cached(retokenized=True) == 512
    assert cached(retokenized=True, kept_tokens=200) == 512 + 192
    assert cached() > 1000


def test_what_several_prefill_workers_push_enters_a_decode_worker_one_by_one():
    chats = [Conversation(i, 0.0, (TurnSpec(512, 2),)) for i in range(3)]
    spec = replace(fleet("3P1D"), push_s=0.5)
    first = sorted(j.first_s for j in SimCluster(spec, FixedRouter(frozenset())).run(chats))
    assert first[1] >= first[0] + 0.49
    assert first[2] >= first[1] + 0.49
    alone = SimCluster(spec, FixedRouter(frozenset())).run(chats[:1])[0].first_s
    free = SimCluster(fleet("3P1D"), FixedRouter(frozenset())).run(chats[:1])[0].first_s
    assert alone == pytest.approx(free)  # alone, the push is a part of P's step


def test_a_table_measured_on_a_cluster_can_be_decided_by():
    snapshot = offline.measure(fleet("1P1D"), "1P1D", levels=(1.0,))
    table = Table(snapshot)
    assert len(snapshot.cells) == 27
    assert table.placement == "1P1D"


def test_the_online_loop_publishes_when_the_hardware_differs_from_its_table():
    slow = fleet("2P2D", ("l40s-llama-3.1-8b",))
    chats = workloads.generate(workloads.WILDCHAT, 2.0, 150.0, seed=4)
    loop = Online(SEED)
    router = PolicyRouter(policies.make("adaptive"), None, Weights(), "2P2D", loop)
    SimCluster(slow, router).run(chats)
    assert loop.published > 0
    assert loop.table.version > SEED.version
