"""What a turn books on its workers, and that nothing of it is left behind."""

from typing import Any

import pytest

from controlplane.engines.worker import Reservation, Worker
from ppd.core.names import Role
from tests.unit.controlplane.conftest import record
from tests.unit.controlplane.fakes import FakeEngine

pytestmark = pytest.mark.unit
_NO_POOL: Any = None


def workers() -> tuple[Worker, Worker]:
    return (
        Worker(record(FakeEngine("p0"), Role.PREFILL, "p0"), _NO_POOL),
        Worker(record(FakeEngine("d0"), Role.DECODE, "d0"), _NO_POOL),
    )


def unsent(p: Worker) -> int:
    return p.view(0.0, 2.0).unsent_kv_tokens


def test_kv_counts_as_unsent_until_d_has_its_first_token():
    p, d = workers()
    with Reservation(d, 0, p, 700) as first, Reservation(d, 0, p, 300):
        assert unsent(p) == 1000
        first.prefilled()
        assert unsent(p) == 300
    assert (unsent(p), d.running) == (0, 0)


def test_a_turn_that_fails_leaves_nothing_booked():
    p, d = workers()
    with pytest.raises(ConnectionError), Reservation(d, 50, p, 700):
        raise ConnectionError
    assert (unsent(p), d.running, d.prefill_tokens) == (0, 0, 0)
