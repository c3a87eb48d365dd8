"""The journal outlives a crash, and is not mixed with another cluster's."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from planner.profile.journal import Journal
from planner.profile.records import Head, ProfileError, Speeds
from ppd.core.names import Route
from tests.unit.planner.profiles import point

pytestmark = pytest.mark.unit

HEAD = Head(model="m", placement="1P1D", hardware="h", turns=2)
SPEEDS = Speeds(prefill_tokens_per_s=900.0, decode_tokens_per_s=100.0, step_ms=40.0, streams=8)
POINT = point("small/tiny@1", Route.P_D, 100.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out" / "journal.jsonl"


def test_what_was_added_is_there_again(path: Path):
    journal = Journal(path)
    assert not journal.begin(HEAD)
    journal.add(SPEEDS)
    journal.add(POINT)
    again = Journal(path)
    assert again.begin(HEAD)
    assert (again.head, again.speeds, again.points) == (HEAD, SPEEDS, [POINT])


def test_a_line_that_a_crash_cut_off_is_dropped(path: Path):
    journal = Journal(path)
    journal.begin(HEAD)
    journal.add(POINT)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    again = Journal(path)
    assert again.points == []
    again.add(POINT)
    assert Journal(path).points == [POINT]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("change", [{"model": "n"}, {"placement": "2P2D"}, {"hardware": "x"}, {"turns": 3}])
def test_another_cluster_is_refused(path: Path, change: dict[str, object]):
    Journal(path).begin(HEAD)
    with pytest.raises(ProfileError, match=next(iter(change))):
        Journal(path).begin(replace(HEAD, **change))


def test_a_file_of_another_kind_is_left_alone(path: Path):
    path.parent.mkdir()
    path.write_text("my notes\n")
    with pytest.raises(ProfileError, match="no journal"):
        Journal(path)
    assert path.read_text() == "my notes\n"
