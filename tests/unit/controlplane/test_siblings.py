"""What the processes of one frontend show of each other."""

import mmap

import pytest

from controlplane.shared.siblings import LATE, Gauges, Siblings, shared_memory
from ppd.core.names import Reason, Route
from ppd.core.records import TurnRecord

pytestmark = pytest.mark.unit


def turn(number: int, **fields: object) -> TurnRecord:
    given = {"request_id": f"r{number}", "ended_unix_s": float(number), "model": "m", "placement": "1P1D"}
    return TurnRecord(**given | {"path": Route.P_D, "reason": Reason.TABLE} | fields)  # type: ignore[arg-type]


def ids(siblings: Siblings) -> list[str]:
    return [record.request_id for record in siblings.late()]


@pytest.fixture
def memory() -> mmap.mmap:
    return shared_memory(3)


def test_one_process_needs_no_memory() -> None:
    alone = Siblings()
    for number in range(LATE + 5):
        alone.add(turn(number))
    assert ids(alone) == [f"r{number}" for number in range(5, LATE + 5)]
    assert alone.total(Gauges(1, 2, 3), 9.0) == (1, 2, 3)


def test_each_process_sees_the_last_turns_of_all_in_order(memory: mmap.mmap) -> None:
    three = [Siblings(memory, 3, own) for own in range(3)]
    assert ids(three[0]) == []
    for number in range(1, 2 * LATE):
        three[number % 3 if number < LATE else 0].add(turn(number))
    expected = [f"r{number}" for number in range(LATE, 2 * LATE)]
    assert [ids(each) for each in three] == [expected] * 3
    assert three[1].late()[0] == turn(LATE)


def test_a_process_goes_on_after_its_dead_forerunner(memory: mmap.mmap) -> None:
    first, other = Siblings(memory, 3, 1), Siblings(memory, 3, 2)
    for number in range(1, LATE + 11):
        first.add(turn(number))
    again = Siblings(memory, 3, 1)
    assert not again.own
    again.add(turn(LATE + 11))
    assert ids(other) == [f"r{number}" for number in range(12, LATE + 12)]


def test_a_record_that_is_being_written_is_passed_over(memory: mmap.mmap) -> None:
    one, other = Siblings(memory, 3, 0), Siblings(memory, 3, 1)
    for number in range(1, 4):
        one.add(turn(number))
    at = memory.find(b'"r2"')
    memory[at : at + 4] = b'"rX"'
    assert ids(other) == ["r1", "r3"]


def test_a_record_of_any_length_does_no_harm(memory: mmap.mmap) -> None:
    one, other = Siblings(memory, 3, 0), Siblings(memory, 3, 1)
    for number, session in enumerate(("s" * 1000, "s" * 100_000, "s"), 1):
        one.add(turn(number, session_id=session))
    assert ids(other) == ["r1", "r3"]
    assert len(one.own) == 3


def test_gauges_are_summed_over_those_that_live(memory: mmap.mmap) -> None:
    one, other, dead = (Siblings(memory, 3, own) for own in range(3))
    one.say(Gauges(5, 5, 5), 100.0)
    other.say(Gauges(20, 2, 1), 100.0)
    dead.say(Gauges(300, 30, 30), 90.0)
    assert one.total(Gauges(7, 1, 0), 100.1) == Gauges(27, 3, 1)
