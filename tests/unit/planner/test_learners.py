"""What a planner takes from the stream and saves, without a server."""

import logging
from typing import Any

import msgspec
import pytest

from planner.learners import Learners
from planner.state import SavedState, prior_key, state_key
from ppd.core import seeds
from ppd.core.names import table_key
from ppd.core.placement import parse_placement
from ppd.core.records import Record, encode
from ppd.runtime.streams import TooLargeError
from tests.support.planners import MODEL, turn

pytestmark = pytest.mark.unit

KEY = table_key(MODEL, "1P1D")
PRIOR = seeds.nearest(parse_placement("1P1D"), MODEL)
REBUILT = msgspec.structs.replace(PRIOR, version=PRIOR.version + 1)


class FakeStore:
    """The bucket PPD_LEARNER in memory; `refused` are keys whose values are too large."""

    def __init__(self) -> None:
        self.values: dict[str, Record] = {}
        self.refused: set[str] = set()

    async def open(self) -> None:
        pass

    async def tables(self) -> list[str]:
        return sorted(key.removesuffix(".state") for key in self.values if key.endswith(".state"))

    def revision(self, key: str) -> int:
        return 0

    async def read(self, key: str, kind: type[Any]) -> Any:
        return self.values.get(key)

    async def write(self, key: str, record: Record) -> None:
        if key in self.refused:
            raise TooLargeError(f"what was learned of {key}: too large")
        self.values[key] = record


def learners(store: FakeStore) -> Learners:
    return Learners(store, 1, logging.getLogger("test"))  # type: ignore[arg-type]


def take(made: Learners, *sequences: int) -> None:
    for sequence in sequences:
        made.take(encode(turn(sequence)), sequence, 1_700_000_000.0 + sequence)


def samples(made: Learners) -> int:
    learner = made.held[KEY].learner
    assert learner is not None
    return learner.learned.samples


async def test_turns_from_before_a_rebuild_that_come_after_it_count_and_teach_nothing() -> None:
    store = FakeStore()
    made = learners(store)
    await made.claim("stream 1")
    await made.rebase(KEY, PRIOR)
    take(made, 1, 2, 3)
    assert samples(made) == 3
    await made.rebase(KEY, REBUILT, after=6)  # the stream holds six; three are still on their way
    take(made, 4, 5, 6)
    assert (samples(made), made.held[KEY].turns) == (0, 6)
    take(made, 7)
    assert (samples(made), made.held[KEY].turns) == (1, 7)


async def test_the_next_leader_knows_where_the_rebuild_was_and_a_new_stream_begins_anew() -> None:
    store = FakeStore()
    made = learners(store)
    await made.claim("stream 1")
    await made.rebase(KEY, REBUILT, after=6)
    heir = learners(store)
    await heir.claim("stream 1")
    take(heir, 5, 6, 7)
    assert (samples(heir), heir.held[KEY].turns) == (1, 3)
    await heir.save(0)
    later = learners(store)
    await later.claim("stream 2")
    take(later, 1, 2)
    assert samples(later) == 3


async def test_what_is_too_large_to_save_goes_on_in_memory_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FakeStore()
    made = learners(store)
    await made.claim("stream 1")
    await made.rebase(KEY, PRIOR)
    store.refused.add(state_key(KEY))
    for sequence in (1, 2, 3):
        take(made, sequence)
        await made.save(0)
    assert samples(made) == 3
    assert list(made.too_large) == [state_key(KEY)]
    assert caplog.text.count("cannot save what was learned of") == 1
    store.refused.clear()
    take(made, 4)
    await made.save(0)
    assert made.too_large == {}
    saved = store.values[state_key(KEY)]
    assert isinstance(saved, SavedState)
    assert saved.turns == 4
    assert prior_key(KEY) in store.values
