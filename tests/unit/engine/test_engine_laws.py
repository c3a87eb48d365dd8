"""Laws that the engine model keeps whatever the load: tokens and blocks are conserved, times reproducible."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppd.core.engine import Engine, EngineConfig, EventKind, Request, RequestTooLargeError
from ppd.core.hardware import load_profile

pytestmark = pytest.mark.unit
PROFILE = load_profile("h100-llama-3.1-8b")
BLOCK = 16


def make_engine(capacity_tokens=4096, max_batch_tokens=512, max_run_steps=256, **changes):
    config = EngineConfig(
        kv_capacity_tokens=capacity_tokens, max_batch_tokens=max_batch_tokens, max_seqs=64, **changes
    )
    return Engine(PROFILE, config, max_run_steps)


def request(name, prompt, output, conversation=None, **kind):
    start = (name if conversation is None else conversation) << 20
    return Request(str(name), range(start, start + (prompt + output) // BLOCK), prompt, output, **kind)


def drive(engine, arrivals, pull_s=0.01):
    """Run to the end: `arrivals` is a list of (time, request). All events, in order."""
    arrivals = sorted(arrivals, key=lambda each: each[0])
    pulls, events = [], []
    while True:
        at = min(engine.next_s, arrivals[0][0] if arrivals else inf, min(pulls)[0] if pulls else inf)
        if at == inf:
            return events
        while arrivals and arrivals[0][0] <= at:
            engine.submit(arrivals.pop(0)[1], at)
        for pull in sorted(p for p in pulls if p[0] <= at):
            pulls.remove(pull)
            engine.pulled(pull[2], at)
        for event in engine.advance(at):
            events.append(event)
            if event.kind is EventKind.PULL:
                pulls.append((event.at_s + pull_s, len(events), event.request))
        assert engine.pool.in_use + engine.pool.idle <= engine.pool.capacity


loads = st.lists(
    st.tuples(
        st.floats(0, 2),
        st.integers(1, 900),  # prompt
        st.integers(1, 200),  # output
        st.integers(0, 4),  # conversation
        st.booleans(),  # pulled from elsewhere
    ),
    min_size=1,
    max_size=25,
)


def built(load):
    return [
        (at, request(i, prompt, output, conversation, pull_tokens=prompt if pull else 0))
        for i, (at, prompt, output, conversation, pull) in enumerate(load)
    ]


@given(loads)
@settings(max_examples=150, deadline=None)
def test_every_token_is_made_and_every_block_given_back(load):
    engine = make_engine()
    arrivals = built(load)
    events = drive(engine, list(arrivals))
    requests = [r for _, r in arrivals]
    assert sorted(e.request.request_id for e in events if e.kind is EventKind.FINISHED) == sorted(
        r.request_id for r in requests
    )
    assert all(r.generated == r.output_tokens for r in requests)
    assert engine.generated_tokens == sum(r.output_tokens for r in requests)
    assert engine.pool.in_use == 0
    assert engine.running == engine.waiting == 0
    for r in requests:
        assert r.arrived_s < r.first_token_s <= r.last_token_s


@given(loads)
@settings(max_examples=60, deadline=None)
def test_the_same_load_gives_the_same_times_to_the_bit(load):
    def times():
        arrivals = built(load)
        drive(make_engine(), list(arrivals))
        return [(r.first_token_s, r.last_token_s, r.cached_tokens, r.preemptions) for _, r in arrivals]

    assert times() == times()


@given(loads)
@settings(max_examples=60, deadline=None)
def test_skipping_equal_steps_changes_nothing_but_the_effort(load):
    """Runs of steps in closed form against one step at a time: attention is taken as linear over a run."""

    def times(max_run_steps):
        arrivals = built(load)
        engine = make_engine(capacity_tokens=1 << 17, max_run_steps=max_run_steps)
        drive(engine, list(arrivals))
        return engine.steps, [r.last_token_s for _, r in arrivals]

    (steps, exact), (skipped_steps, skipped) = times(1), times(256)
    assert skipped_steps == pytest.approx(steps, abs=3 + 0.02 * steps)
    assert skipped == pytest.approx(exact, rel=0.02, abs=0.02)


def test_what_is_cached_of_a_conversation_is_a_prefix():
    engine = make_engine(capacity_tokens=1024)
    for i in range(12):
        drive(engine, [(100.0 * i, request(i, 300, 20, conversation=i % 4))])
        for conversation in range(4):
            keys = range(conversation << 20, (conversation << 20) + 40)
            pool = engine.pool
            present = [key in pool._idle or key in pool._references for key in keys]
            assert present == sorted(present, reverse=True)
            assert pool.cached_blocks(keys, 40) == sum(present)


def test_the_second_turn_finds_the_first_ones_blocks_and_never_all_of_its_prompt():
    engine = make_engine()
    first, second, again = (request(i, p, 32, conversation=7) for i, p in enumerate((160, 256, 256)))
    drive(engine, [(0.0, first), (10.0, second), (20.0, again)])
    assert first.cached_tokens == 0
    assert second.cached_tokens == (160 + 31) // BLOCK * BLOCK
    assert again.cached_tokens == 256 - BLOCK


def test_prefill_slows_a_decode_that_shares_its_steps():
    def tpot(with_prefill):
        engine = make_engine(capacity_tokens=1 << 17, max_batch_tokens=8192)
        reader = request(0, 64, 100)
        load = [(0.0, reader)]
        if with_prefill:
            load += [(0.1 * i, request(i, 4000, 1)) for i in range(1, 5)]
        drive(engine, load)
        return (reader.last_token_s - reader.first_token_s) / 99

    assert tpot(True) > 1.2 * tpot(False)


@pytest.mark.parametrize("count", [2, 8, 32])
def test_more_load_never_makes_anyone_faster(count):
    def last(n):
        arrivals = [(0.01 * i, request(i, 200, 50)) for i in range(n)]
        drive(make_engine(capacity_tokens=1 << 17), list(arrivals))
        return [r.last_token_s for _, r in arrivals]

    fewer, more = last(count), last(2 * count)
    assert all(b >= a - 1e-9 for a, b in zip(fewer, more, strict=False))


def test_without_room_the_last_one_is_preempted_and_still_gets_all_its_tokens():
    engine = make_engine(capacity_tokens=640)
    arrivals = [(0.0, request(i, 128, 150)) for i in range(4)]
    drive(engine, list(arrivals))
    assert engine.preempted > 0
    assert all(r.generated == 150 for _, r in arrivals)


def test_leased_blocks_stay_until_read_or_expired():
    engine = make_engine(lease_s=5.0)
    engine.submit(request(0, 160, 1, lease=True), 0.0)
    engine.submit(request(1, 160, 1, lease=True), 0.0)
    while engine.running or engine.waiting or not engine.steps:
        engine.advance(engine.next_s)
    assert engine.leased == 2
    held = engine.pool.in_use
    assert engine.release("0", 1.0)
    assert not engine.release("0", 1.0)
    assert engine.pool.in_use == held // 2
    assert engine.next_s > 5.0
    expired = engine.advance(engine.next_s)
    assert [(e.kind, e.request.request_id) for e in expired] == [(EventKind.LEASE_EXPIRED, "1")]
    assert engine.pool.in_use == 0
    assert engine.next_s == inf


@pytest.mark.parametrize("at", [0.0, 0.001, 0.05, 0.3])
def test_an_abort_gives_the_blocks_back_wherever_the_request_is(at):
    engine = make_engine(capacity_tokens=640)
    doomed = request(0, 256, 100)
    others = [request(i, 200, 40) for i in (1, 2)]
    for r in (doomed, *others):
        engine.submit(r, 0.0)
    while engine.next_s <= at:
        engine.advance(engine.next_s)
    engine.abort(doomed, at)
    drive(engine, [])
    assert engine.pool.in_use == 0
    assert doomed.generated < 100
    assert all(r.generated == 40 for r in others)


def test_a_pull_that_fails_is_recomputed():
    engine = make_engine()
    r = request(0, 160, 4, pull_tokens=160)
    engine.submit(r, 0.0)
    (event,) = engine.advance(0.0)
    assert event.kind is EventKind.PULL
    assert r.pulled_tokens == 160
    engine.pulled(r, 0.5, ok=False)
    drive(engine, [])
    assert r.generated == 4
    assert engine.prefilled_tokens == 160
    assert r.pulled_tokens == 0


def test_a_pulled_prompt_costs_one_token_of_prefill():
    engine = make_engine()
    r = request(0, 160, 4, pull_tokens=160)
    drive(engine, [(0.0, r)])
    assert engine.prefilled_tokens == 1
    assert r.pulled_tokens == 160


def test_what_can_never_fit_is_refused():
    with pytest.raises(RequestTooLargeError, match="exceed"):
        make_engine(capacity_tokens=640).submit(request(0, 600, 100), 0.0)


def first_at(engine, arrivals):
    return {e.request.request_id: e.at_s for e in drive(engine, arrivals) if e.kind is EventKind.FIRST}


def test_a_step_too_large_for_cuda_graphs_costs_its_launches():
    plain = first_at(make_engine(max_batch_tokens=1024), [(0.0, request(0, 600, 2))])["0"]
    eager = {"graph_tokens": 512, "eager_s": 0.009, "eager_send_s": 0.5}
    large = first_at(make_engine(max_batch_tokens=1024, **eager), [(0.0, request(0, 600, 2))])["0"]
    assert large == pytest.approx(plain + 0.009)
    small = first_at(make_engine(max_batch_tokens=1024, **eager), [(0.0, request(0, 500, 2))])["0"]
    assert small == first_at(make_engine(max_batch_tokens=1024), [(0.0, request(0, 500, 2))])["0"]
    sent = first_at(make_engine(max_batch_tokens=1024, **eager), [(0.0, request(0, 600, 1, lease=True))])["0"]
    assert sent == pytest.approx(0.5)


def test_sends_of_one_step_add_up():
    def took(count, **changes):
        sent = [(0.0, request(i, 64, 1, lease=True)) for i in range(count)]
        engine = make_engine(**changes)
        for _, each in sent:
            engine.submit(each, 0.0)
        engine.advance(0.0)  # alone or together: whoever is there at once shares the step
        return engine.next_s

    costs = {"send_s": 0.03, "send_more_s": 0.01}
    assert took(1, **costs) == pytest.approx(took(1) + 0.03)
    assert took(3, **costs) == pytest.approx(took(3) + 3 * 0.03 + 2 * 0.01)


def test_a_stalled_engine_goes_on_as_much_later():
    engine = make_engine()
    engine.stall(0.0, 1.0)
    assert engine.next_s == inf
    assert first_at(engine, [(0.5, request(0, 64, 2))])["0"] > 1.0
    engine = make_engine()
    engine.submit(request(0, 64, 2), 0.0)
    engine.advance(0.0)
    end = engine.next_s
    engine.stall(0.0, 2.0)
    engine.stall(0.0, 1.5)  # within the other
    assert engine.next_s == pytest.approx(end + 2.0)
