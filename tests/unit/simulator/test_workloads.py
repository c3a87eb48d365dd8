"""Traffic: rates, lengths, shared prefixes, and the trace rebuilt into conversations."""

import random
from itertools import pairwise
from statistics import fmean

import pytest

from simulator import mooncake, workloads
from simulator.arrivals import bursty, poisson
from simulator.conversation import Conversation, TurnSpec
from simulator.mooncake import TraceRequest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("arrivals", [poisson, bursty])
def test_arrivals_keep_their_mean_rate(arrivals):
    found = list(arrivals(random.Random(0), 5.0, 4000.0))
    assert len(found) / 4000 == pytest.approx(5.0, rel=0.03)
    assert all(b > a for a, b in pairwise(found))


def test_bursts_hold_four_fifths_of_the_traffic_in_a_fifth_of_the_time():
    found = list(bursty(random.Random(0), 5.0, 4000.0))
    assert fmean(at % 20 < 4 for at in found) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("shape", [workloads.SHAREGPT, workloads.WILDCHAT, workloads.AGENTIC])
def test_chats_have_2_to_20_turns_within_the_context(shape):
    for chat in workloads.generate(shape, 20.0, 30.0, seed=1):
        assert 2 <= len(chat.turns) <= 20
        assert chat.context(len(chat.turns)) <= 32_000


def test_a_shared_system_prompt_has_the_same_blocks_in_every_chat_and_nothing_else_has():
    a, b = (Conversation(i, 0.0, (TurnSpec(128, 64),), shared_tokens=64) for i in range(2))
    first, second = a.keys(0, 16), b.keys(0, 16)
    assert list(first[:4]) == list(second[:4])
    assert not set(first[4:]) & set(second[4:])


def test_a_later_turns_blocks_begin_with_the_earlier_ones():
    chat = Conversation(3, 0.0, (TurnSpec(100, 60), TurnSpec(40, 90)))
    first, second = chat.keys(0, 16), chat.keys(1, 16)
    assert list(second[: len(first)]) == list(first)


def trace(*requests):
    return [TraceRequest(1000.0 * at, length, 100, ids) for at, length, ids in requests]


def test_requests_that_extend_a_prefix_become_turns_of_one_conversation():
    found = mooncake.conversations(
        trace((0, 1100, [1, 2, 3]), (1, 700, [9, 10]), (30, 1700, [1, 2, 4, 5]), (60, 2100, [1, 2, 4, 6, 7]))
    )
    assert [len(c.turns) for c in found] == [3, 1]
    first, second, third = found[0].turns
    assert (first.n_in, second.n_in, third.n_in) == (1100, 500, 300)
    assert second.think_s == 30.0


def test_a_branch_of_a_prefix_begins_a_conversation_of_its_own():
    found = mooncake.conversations(
        trace((0, 1100, [1, 2, 3]), (5, 1700, [1, 2, 4, 5]), (9, 1800, [1, 2, 8, 9]))
    )
    assert [len(c.turns) for c in found] == [2, 1]


def test_a_conversation_ends_before_it_outgrows_the_context():
    found = mooncake.conversations(trace((0, 600, [1, 2]), (5, 5000, [1, 3, 4])), max_context_tokens=2000)
    assert [len(c.turns) for c in found] == [1]
